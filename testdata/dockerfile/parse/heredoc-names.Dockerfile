FROM a
RUN <<A
1
A
RUN <<"B C" 3<<-'D'
2
B C
	D
COPY <<\E <<F"G" <<$H <<${I} <<'J.txt' /x/
3
E
4
FG
$H
${I}
5
J.txt
COPY << K /x
taken away
K
ADD 0<<L 7<<M-N /y/
6
L
7
M-N
RUN <<A <<A cat
first
A
second
A
RUN cat <<<A
RUN cat < <A
RUN a<<A
RUN "<<A" '<<A' \<<A
RUN <<A| cat
8
A|
