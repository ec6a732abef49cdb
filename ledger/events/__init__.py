"""Where events go, once they are written (contract section V).

Signed HTTP deliveries (V3, V4): `endpoints` are configured, `deliveries` keeps what is to be sent and how it went,
`webhooks` sends it. The README says what receivers can rely on.

Redis, where there is one: `streams` publishes events, `balances` the figures of accounts, `mirror` keeps both going.
"""
