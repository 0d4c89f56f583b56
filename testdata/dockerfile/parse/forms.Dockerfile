FROM scratch
RUN ls -l
RUN ["ls", "-l\u0041\n"]
RUN
RUN []
run   [ "a" ] x
CMD ["a", "b"] x
CMD ['a', 'b']
CMD []
CMD
ENTRYPOINT ["e"]
ENTRYPOINT e $x \"q\"
SHELL ["/bin/bash", "-c"]
VOLUME ["/a b"] 
VOLUME /c	 /d
VOLUME ["/a" b]
COPY ["a b", "/x y/"]
COPY "a b" /c
