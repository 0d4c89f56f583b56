FROM scratch
COPY --from=0 --chown=user:grp --chmod=u=rwX,go=rX --link --parents --exclude=*.txt --exclude=!a a b /c/
COPY --link=False --from= a /b
ADD --checksum=sha256:$sum --keep-git-dir=true --unpack=false --link https://example.com/x.tar /d/
ADD --keep-git-dir --unpack a b
COPY -- --x /y
COPY * ../b \$c .
