FROM scratch

COPPY a b \
 c
