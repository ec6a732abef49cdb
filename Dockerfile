# The service and its command line, as compose.yaml runs them: pinned by hash, as a user that may change nothing.
FROM python:3.11.11-slim-bookworm AS build
WORKDIR /source
RUN python -m venv /opt/gateway-ledger
ENV PATH=/opt/gateway-ledger/bin:$PATH
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes --requirement requirements.lock
COPY pyproject.toml ./
COPY ledger ledger
COPY pricing pricing
COPY jobs jobs
COPY migrations migrations
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11.11-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home ledger
COPY --from=build /opt/gateway-ledger /opt/gateway-ledger
ENV PATH=/opt/gateway-ledger/bin:$PATH PYTHONDONTWRITEBYTECODE=1 LEDGER_HOST=0.0.0.0 LEDGER_PORT=8000
USER 10001
EXPOSE 8000
ENTRYPOINT ["gateway-ledger"]
CMD ["serve"]
