FIELDS: dict[str,str] = {}
