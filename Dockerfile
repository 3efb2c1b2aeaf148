# docker build -t ppsim . && docker run --rm -v "$PWD:/work" ppsim project --pp 8 --vpp 2 -o timeline.html
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir /src && rm -r /src
WORKDIR /work
ENTRYPOINT ["ppsim"]
