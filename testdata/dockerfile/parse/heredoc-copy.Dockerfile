FROM scratch
COPY <<f1 <<'f2' a /d/
$1
f1
2
f2
COPY --chmod=755 --chown=5:6 <<-EOF /s
	$x
	EOF
ADD <<X <<X /x/
first
X
second
X
