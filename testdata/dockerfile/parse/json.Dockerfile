FROM a
CMD ["a", "b"]
CMD [ "a" ,"b c" ]  
CMD []
CMD ["a",]
CMD ['a']
CMD ["a"] x
CMD ["a\x"]
CMD ["a" "b"]
CMD ["\u0041\ud83d\ude00\n\/\"\\"]
CMD ["\ud800"]
CMD ["a",\
  # a comment
  "b"]
CMD [\
"a"\
]
COPY ["a b", "c", "/d e/"]
COPY [a b]
COPY ["a"] b
ADD [ "a" , "b" ]
VOLUME ["/a", " /b "]
VOLUME [/a, /b]
RUN ["<<A", "b"]
SHELL ["/a"]
HEALTHCHECK CMD  ["a"]
HEALTHCHECK CMD [a]
ONBUILD CMD ["a"]
