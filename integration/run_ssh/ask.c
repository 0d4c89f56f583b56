/* Asks an SSH agent: `ask SOCKET KIND` prints the kind of the answer and the number that stands first in it. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int count, char **arguments) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (count != 3) return 2;
    strncpy(address.sun_path, arguments[1], sizeof address.sun_path - 1);
    int connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address)) {
        perror("connect");
        return 1;
    }
    unsigned char request[5] = {0, 0, 0, 1, (unsigned char)atoi(arguments[2])};
    unsigned char answer[9] = {0};
    size_t length = 0;
    if (write(connection, request, sizeof request) != sizeof request) return 1;
    while (length < sizeof answer) {
        ssize_t more = read(connection, answer + length, sizeof answer - length);
        if (more <= 0) break;
        length += (size_t)more;
        if (length >= 5 && answer[4] == 5) break;
    }
    printf("%d %d\n", answer[4], answer[8]);
    return 0;
}
