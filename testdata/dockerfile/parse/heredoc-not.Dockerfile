FROM scratch
RUN echo $((1<<3))
RUN cat <<<EOF
RUN "<<EOF"
CMD cat <<EOF
ENV a=1
USER <<X
RUN ["<<EOF"]
LABEL a=<<EOF
RUN cat <<'EOF
ENV b=1
COPY <<"a b" /d/
x
a b
