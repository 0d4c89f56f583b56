// Makes system calls and says what they gave. Each argument is `NUMBER[,ARGUMENT…]`, decimal, with a prefix: none for
// calls as this program's architecture makes them, `i` for 32-bit calls out of a 64-bit x86 program. Without C library,
// so that it can be compiled for 32 bits anywhere.

typedef long word;

#if defined(__x86_64__)
static word call(word n, word *a) {
    register word r10 __asm__("r10") = a[3];
    register word r8 __asm__("r8") = a[4];
    word result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(n), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}
static word call_32(word n, word *a) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"((int)n), "b"(a[0]), "c"(a[1]), "d"(a[2]), "S"(a[3]), "D"(a[4])
                     : "r8", "r9", "r10", "r11", "memory");
    return result;
}
enum { WRITE = 1, EXIT = 60 };
__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall begin");
#elif defined(__i386__)
static word call(word n, word *a) {
    word result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(n), "b"(a[0]), "c"(a[1]), "d"(a[2]), "S"(a[3]), "D"(a[4])
                     : "memory");
    return result;
}
#define call_32 call
enum { WRITE = 4, EXIT = 1 };
__asm__(".globl _start\n_start: mov %esp, %eax\nand $-16, %esp\nsub $12, %esp\npush %eax\ncall begin");
#elif defined(__aarch64__)
static word call(word n, word *a) {
    register word x8 __asm__("x8") = n, x0 __asm__("x0") = a[0], x1 __asm__("x1") = a[1], x2 __asm__("x2") = a[2],
                  x3 __asm__("x3") = a[3], x4 __asm__("x4") = a[4];
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#define call_32 call
enum { WRITE = 64, EXIT = 93 };
__asm__(".globl _start\n_start: mov x0, sp\nb begin");
#endif

static void print(word value) {
    char text[24], *at = text + sizeof text;
    int negative = value < 0;
    *--at = '\n';
    do {
        int digit = value % 10;
        *--at = '0' + (digit < 0 ? -digit : digit);
    } while (value /= 10);
    if (negative) *--at = '-';
    word arguments[5] = {1, (word)at, text + sizeof text - at};
    call(WRITE, arguments);
}

__attribute__((used)) void begin(word *stack) {
    char **arguments = (char **)stack + 1;
    for (word i = 1; i < stack[0]; i++) {
        word values[6] = {0};
        char *at = arguments[i];
        int other = *at == 'i';
        if (other) at++;
        for (int position = 0; position < 6; position++) {
            unsigned long value = 0;
            while (*at >= '0' && *at <= '9') value = value * 10 + (*at++ - '0');
            values[position] = value;
            if (*at++ != ',') break;
        }
        print(other ? call_32(values[0], values + 1) : call(values[0], values + 1));
    }
    call(EXIT, (word[5]){0});
}
