# One image for the daemon, the one-table command and Spark's executors on Kubernetes.
#
#   docker build --tag compactord --build-arg REVISION="$(git rev-parse HEAD)" .
#   docker run --rm --read-only --volume /data/wh:/data/wh compactord compact --warehouse /data/wh --table db.t
#
# The base is named by its tag. For a build that can be repeated, give its digest as well:
#   --build-arg BASE=debian:bookworm-slim@sha256:...
# Python packages, Spark's jars inside one of them, are fixed by checksum in requirements/.

ARG BASE=debian:bookworm-slim

FROM ${BASE} AS builder
# Debian's security updates replace versions: a pinned one would soon be gone from its archive.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /build
COPY requirements/build.txt requirements/runtime.txt /requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    /build/bin/python -m pip install --require-hashes --no-deps --requirement /requirements/build.txt \
 && /build/bin/python -m pip wheel --require-hashes --no-deps --no-build-isolation \
        --wheel-dir /wheels --requirement /requirements/runtime.txt
# No pip in here: what runs can install nothing.
RUN python3 -m venv --without-pip /opt/compactord \
 && /build/bin/python -m pip --python /opt/compactord/bin/python install \
        --no-deps --no-index --no-cache-dir /wheels/*.whl
COPY pyproject.toml README.md /source/
COPY compactord /source/compactord
# compactord/runbooks is a link to them.
COPY deploy/runbooks /source/deploy/runbooks
RUN /build/bin/python -m pip wheel --no-deps --no-index --no-build-isolation --no-cache-dir \
        --wheel-dir /own /source \
 && /build/bin/python -m pip --python /opt/compactord/bin/python install \
        --no-deps --no-index --no-cache-dir /own/*.whl
COPY --chmod=755 deploy/image/entrypoint.py /opt/compactord/bin/entrypoint
COPY --chmod=755 deploy/image/decommission.py /opt/compactord/bin/decommission

FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
 # Kerberos, for HDFS, is loaded where a name node asks for it.
 && apt-get install --yes --no-install-recommends \
        libgssapi-krb5-2 openjdk-17-jre-headless python3 tini tzdata \
 && rm -rf /var/lib/apt/lists/* \
 # Nothing in here has to gain rights.
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
 # The JVM looks its user up.
 && groupadd --gid 10001 compactord \
 && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home \
        --home-dir /var/lib/compactord --shell /usr/sbin/nologin compactord \
 && install --directory --owner=10001 --group=10001 /var/lib/compactord \
 # Where Spark mounts the settings of its executors.
 && mkdir -p /opt/spark/conf /etc/compactord
COPY --from=builder /opt/compactord /opt/compactord
ENV PATH=/opt/compactord/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Which commit this is changes with every build, so it comes last.
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="compactord" \
      org.opencontainers.image.description="A dedicated compaction service for Apache Paimon tables" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
# All else may be read-only. Executors unpack what the driver sends into the working directory.
VOLUME ["/tmp", "/var/lib/compactord"]
WORKDIR /var/lib/compactord
USER 10001:10001
EXPOSE 9464
STOPSIGNAL SIGTERM
# Process 1 has to pass signals on and to reap what the JVM leaves.
ENTRYPOINT ["/usr/bin/tini", "-g", "--", "/opt/compactord/bin/entrypoint"]
CMD ["serve"]
