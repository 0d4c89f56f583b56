@ A program for linux/arm/v7: movw is an instruction of ARMv7 (and of ARMv6T2, which no variant means).
@
@   arm-linux-gnueabi-as -march=armv7-a -o v7.o v7.s && arm-linux-gnueabi-ld -s -z max-page-size=4096 -o v7 v7.o
@
@ (Debian's package binutils-arm-linux-gnueabi). Writes "v7" and ends with 0.
    .arch armv7-a
    .text
    .global _start
_start:
    movw r2, #3
    mov r0, #1
    adr r1, text
    mov r7, #4
    svc 0
    mov r0, #0
    mov r7, #1
    svc 0
text:
    .ascii "v7\n"
    .align 2
