# escape=`
FROM a
RUN a `
  b ``
RUN c \
RUN d `  
  # a comment
  `
  e
ENV a=c:\d b="x `" y" c="``" d=e` f
COPY a` b c:\
LABEL a "b` c"
RUN <<\E
`
E
COPY <<E /x
`$a
E
