# syntax=docker/dockerfile:1
# Everything that `penaltybox` runs on servers: workers, services, console, commands. No embedded servers.
# Dependencies are those of requirements-image.lock, with their hashes; `make lock` makes it as a part of requirements.lock.

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /build
COPY requirements-image.lock ./
RUN python -m venv /opt/penaltybox \
 && /opt/penaltybox/bin/python -m pip install --no-cache-dir --no-compile --only-binary=:all: --require-hashes \
    --requirement requirements-image.lock
COPY pyproject.toml README.md LICENSE ./
COPY penaltybox ./penaltybox
COPY policies ./policies
COPY tests/data/apache_access.log ./tests/data/apache_access.log
RUN /opt/penaltybox/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/penaltybox/bin/python -m compileall -q /opt/penaltybox/lib

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="penaltybox" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/penaltybox/penaltybox"
# The directory belongs to the user, and so does a volume that is mounted there for the first time.
RUN groupadd --system --gid 10001 penaltybox \
 && useradd --system --uid 10001 --gid penaltybox --no-create-home --home-dir /tmp penaltybox \
 && install --directory --owner=penaltybox --group=penaltybox --mode=0700 /var/lib/penaltybox
COPY --from=build /opt/penaltybox /opt/penaltybox
ENV PATH=/opt/penaltybox/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["penaltybox"]
CMD ["--help"]
