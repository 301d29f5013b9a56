# Two stages: the first has pip and the sources, the second only what runs. Build it at the root of the tree:
#   docker build --tag pointsman .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /src
RUN python -m venv /opt/pointsman
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY router router
COPY engines engines
# The constraints pin every package, so that two builds of one commit hold the same code.
RUN /opt/pointsman/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    --constraint constraints.txt '.[kv-events,tokenizer]'

FROM python:${PYTHON}-slim
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin pointsman
COPY --from=build /opt/pointsman /opt/pointsman
# The program listens on 127.0.0.1 unless told otherwise, and nobody outside a container reaches that.
# The admin API stays on the container's own 127.0.0.1:29001.
ENV PATH=/opt/pointsman/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    POINTSMAN_SERVER__HOST=0.0.0.0
USER 10001:10001
EXPOSE 30000
# SIGTERM drains for up to 310 s: give `docker stop --time 320` or stop_grace_period: 320s.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('POINTSMAN_SERVER__PORT', '30000') + '/liveness', timeout=4)"]
ENTRYPOINT ["pointsman"]
CMD ["serve"]
