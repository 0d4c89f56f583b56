FROM scratch
ONBUILD RUN echo $x
onbuild copy a b
ONBUILD   BOGUS x \
  y
ONBUILD COPY <<EOF <<-B /x/
body $a
EOF
	b
	B
ONBUILD CMD <<EOF
ONBUILD RUN --mount=bad ["a"]
