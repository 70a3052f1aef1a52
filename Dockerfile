# One image for the daemon, the one-table command and Spark's executors on Kubernetes.
#
#   docker build --tag compactord --build-arg REVISION="$(git rev-parse HEAD)" .
#   docker run --rm --read-only --volume /data/wh:/data/wh compactord compact --warehouse /data/wh --table db.t
#
# The base is a tag. For a reproducible build pass its digest:
#   --build-arg BASE=debian:bookworm-slim@sha256:...
# Python packages, one of which contains Spark's jars, are fixed by checksum in requirements/.

ARG BASE=debian:bookworm-slim

FROM ${BASE} AS builder
# Debian's security updates replace versions: a pinned version would soon disappear from the archive.
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
# Without pip the running image cannot install packages.
RUN python3 -m venv --without-pip /opt/compactord \
 && /build/bin/python -m pip --python /opt/compactord/bin/python install \
        --no-deps --no-index --no-cache-dir /wheels/*.whl
COPY pyproject.toml README.md /source/
COPY compactord /source/compactord
# compactord/runbooks links to these.
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
 # Kerberos, for HDFS, is loaded if a name node requires it.
 && apt-get install --yes --no-install-recommends \
        libgssapi-krb5-2 openjdk-17-jre-headless python3 tini tzdata \
 && rm -rf /var/lib/apt/lists/* \
 # No program in the image needs setuid.
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
 # The JVM needs an entry of its user.
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
# The commit changes with every build, so it comes last.
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
# The rest may be read-only. Executors unpack the driver's files into the working directory.
VOLUME ["/tmp", "/var/lib/compactord"]
WORKDIR /var/lib/compactord
USER 10001:10001
EXPOSE 9464
STOPSIGNAL SIGTERM
# Process 1 must forward signals and reap the JVM's children.
ENTRYPOINT ["/usr/bin/tini", "-g", "--", "/opt/compactord/bin/entrypoint"]
CMD ["serve"]
