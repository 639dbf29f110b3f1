/* Copyright (c) 2026, the gpumesh authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The mesh of a container without /dev/net/tun, for programs that know nothing of it.
 *
 * There, tailscaled runs in userspace mode. It takes connections out by SOCKS5, and hands incoming ones on from 127.0.0.1.
 * This library stands between programs and libc (/etc/ld.so.preload), so that they see the mesh as an interface of theirs:
 *
 *   connect      to a member: through the proxy, within LIMIT_MS; to the mesh address of this host: to 127.0.0.1
 *   bind         to the mesh address: to 127.0.0.1, to where tailscaled hands connections on
 *   accept       from 127.0.0.1: the member that tailscaled says is behind it
 *   getpeername  the member, not the proxy or 127.0.0.1
 *   getsockname  the mesh address, where that is what was asked for
 *   getifaddrs   one interface more, that of the mesh
 *   sendto, sendmsg, sendmmsg   of datagrams to members: refused, since they would go to the network of the provider
 *   send, write  of a datagram socket connected to a member: ECONNREFUSED after the first one, since it goes to a port
 *                without a listener
 *
 * Who may be believed: a connection from 127.0.0.1 counts as a member's only if tailscaled's own socket is at its other
 * end, which the kernel says (see owned_by_daemon), and tailscaled, asked by a socket that only root can have made, says
 * whose it is. Everything else keeps the address 127.0.0.1. The proxy is used only while its listener is root's.
 *
 * The proxy also connects any account of this host to 127.0.0.1. Such a connection looks like one that tailscaled hands
 * on, but has no member behind it. Programs never wait long for an answer about it, and those of root never see it once
 * that is certain (see accept4).
 *
 * Nothing is read from the environment, and there is no file of settings: the values below are given to the compiler.
 * Sockets are remembered by their cookie, a number of the kernel that no two have, so close and dup need no wrapper.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#if !defined(MESH_ADDRESS) || !defined(MESH_SUBNET) || !defined(MESH_PREFIX) || !defined(MESH_INTERFACE)
#error "Define MESH_ADDRESS, MESH_SUBNET, MESH_PREFIX (bits) and MESH_INTERFACE."
#endif
#if !defined(PROXY_ADDRESS) || !defined(PROXY_PORT) || !defined(API_SOCKET)
#error "Define PROXY_ADDRESS, PROXY_PORT and API_SOCKET."
#endif
#ifndef DAEMON_UID
#define DAEMON_UID 0
#endif
#ifndef LIMIT_MS
#define LIMIT_MS 15000 /* of a dial */
#endif

#ifndef PROXY_MS
#define PROXY_MS 4000 /* after which the proxy, which gives up after 5 s, has had no answer rather than a refusal */
#endif

#ifndef SETTLE_MS
#define SETTLE_MS 50 /* in which tailscaled notes whose a connection is that it has just made */
#endif

#ifndef SPARE_MS
#define SPARE_MS 1000 /* from one wait for that in vain to the next one, whatever the number of connections */
#endif

#define ASK_MS 2000      /* that tailscaled has for an answer */
#define REMEMBERED 16384 /* sockets, by the low bits of their cookie */
#define STRANGERS 1024   /* connections behind which there is no member */
#define NOBODY_PORT 1    /* of UDP, where nothing listens: it is tcpmux's, which is a service of TCP */
#define SELF "127.0.0.1"
#define SELF_SOURCE "127.0.0.3" /* from where this library connects to this host's own mesh address */

#define EXPORT __attribute__((visibility("default")))

/* --- What libc does --------------------------------------------------------------------------------------------- */

static int (*libc_connect)(int, const struct sockaddr *, socklen_t);
static int (*libc_bind)(int, const struct sockaddr *, socklen_t);
static int (*libc_accept4)(int, struct sockaddr *, socklen_t *, int);
static int (*libc_getpeername)(int, struct sockaddr *, socklen_t *);
static int (*libc_getsockname)(int, struct sockaddr *, socklen_t *);
static int (*libc_getifaddrs)(struct ifaddrs **);
static void (*libc_freeifaddrs)(struct ifaddrs *);
static ssize_t (*libc_sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
static ssize_t (*libc_sendmsg)(int, const struct msghdr *, int);
static int (*libc_sendmmsg)(int, struct mmsghdr *, unsigned, int);

static in_addr_t mesh_address, mesh_net, mesh_mask, proxy_address, self_address, self_source;

/* The constructors of other libraries may run, and connect, before ours. */
__attribute__((constructor)) static void begin(void)
{
    static atomic_bool done;
    if (atomic_load(&done))
        return;
    *(void **)&libc_connect = dlsym(RTLD_NEXT, "connect");
    *(void **)&libc_bind = dlsym(RTLD_NEXT, "bind");
    *(void **)&libc_accept4 = dlsym(RTLD_NEXT, "accept4");
    *(void **)&libc_getpeername = dlsym(RTLD_NEXT, "getpeername");
    *(void **)&libc_getsockname = dlsym(RTLD_NEXT, "getsockname");
    *(void **)&libc_getifaddrs = dlsym(RTLD_NEXT, "getifaddrs");
    *(void **)&libc_freeifaddrs = dlsym(RTLD_NEXT, "freeifaddrs");
    *(void **)&libc_sendto = dlsym(RTLD_NEXT, "sendto");
    *(void **)&libc_sendmsg = dlsym(RTLD_NEXT, "sendmsg");
    *(void **)&libc_sendmmsg = dlsym(RTLD_NEXT, "sendmmsg");
    mesh_address = inet_addr(MESH_ADDRESS);
    mesh_mask = htonl(MESH_PREFIX ? ~UINT32_C(0) << (32 - MESH_PREFIX) : 0);
    mesh_net = inet_addr(MESH_SUBNET) & mesh_mask;
    proxy_address = inet_addr(PROXY_ADDRESS);
    self_address = inet_addr(SELF);
    self_source = inet_addr(SELF_SOURCE);
    atomic_store(&done, true);
}

/* --- Addresses: of IPv4, or of IPv4 in IPv6 (::ffff:100.64.0.1) ---------------------------------------------------- */

struct end {
    in_addr_t address; /* both as they are on the wire */
    in_port_t port;
};

static bool read_end(const struct sockaddr *from, socklen_t length, struct end *to)
{
    if (from == NULL || length < sizeof from->sa_family)
        return false;
    if (from->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        const struct sockaddr_in *four = (const void *)from;
        *to = (struct end){four->sin_addr.s_addr, four->sin_port};
        return true;
    }
    if (from->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        const struct sockaddr_in6 *six = (const void *)from;
        if (!IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
            return false;
        memcpy(&to->address, &six->sin6_addr.s6_addr[12], sizeof to->address);
        to->port = six->sin6_port;
        return true;
    }
    return false;
}

static socklen_t write_end(struct end from, sa_family_t family, struct sockaddr_storage *to)
{
    memset(to, 0, sizeof *to);
    if (family == AF_INET6) {
        struct sockaddr_in6 *six = (void *)to;
        six->sin6_family = AF_INET6;
        six->sin6_port = from.port;
        six->sin6_addr.s6_addr[10] = six->sin6_addr.s6_addr[11] = 0xff;
        memcpy(&six->sin6_addr.s6_addr[12], &from.address, sizeof from.address);
        return sizeof *six;
    }
    struct sockaddr_in *four = (void *)to;
    four->sin_family = AF_INET;
    four->sin_port = from.port;
    four->sin_addr.s_addr = from.address;
    return sizeof *four;
}

/* As the kernel does it: cut off at what there is room for, with the whole length told. */
static void give_end(struct end found, sa_family_t family, struct sockaddr *to, socklen_t room, socklen_t *length)
{
    struct sockaddr_storage whole;
    socklen_t size = write_end(found, family, &whole);
    memcpy(to, &whole, size < room ? size : room);
    *length = size;
}

static bool in_mesh(in_addr_t address)
{
    return (address & mesh_mask) == mesh_net;
}

static bool is_stream(int socket_fd)
{
    int type = 0;
    socklen_t length = sizeof type;
    return getsockopt(socket_fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

static bool ends_of(int socket_fd, struct end *local, struct end *peer, sa_family_t *family)
{
    struct sockaddr_storage found;
    socklen_t length = sizeof found;
    if (libc_getsockname(socket_fd, (void *)&found, &length) != 0 || !read_end((void *)&found, length, local))
        return false;
    *family = found.ss_family;
    length = sizeof found;
    return libc_getpeername(socket_fd, (void *)&found, &length) == 0 && read_end((void *)&found, length, peer);
}

/* --- What is remembered of a socket ----------------------------------------------------------------------------- */

enum what { BOUND = 1, PEER }; /* bound to the mesh address; connected with ``peer`` */

static struct {
    _Atomic uint64_t cookie; /* 0 while the rest is written */
    enum what what;
    struct end peer;
} sockets[REMEMBERED];

/* In a table of their own: anybody can make many of them, which must not displace anything above. */
static _Atomic uint64_t strangers[STRANGERS];

static uint64_t cookie_of(int socket_fd)
{
    uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    return getsockopt(socket_fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

static void remember(int socket_fd, enum what what, struct end peer)
{
    uint64_t cookie = cookie_of(socket_fd);
    if (cookie == 0)
        return;
    atomic_store(&sockets[cookie % REMEMBERED].cookie, 0);
    sockets[cookie % REMEMBERED].what = what;
    sockets[cookie % REMEMBERED].peer = peer;
    atomic_store(&sockets[cookie % REMEMBERED].cookie, cookie);
}

static bool recall(int socket_fd, enum what what, struct end *peer)
{
    uint64_t cookie = cookie_of(socket_fd);
    if (cookie == 0 || atomic_load(&sockets[cookie % REMEMBERED].cookie) != cookie)
        return false;
    enum what found = sockets[cookie % REMEMBERED].what;
    *peer = sockets[cookie % REMEMBERED].peer;
    return atomic_load(&sockets[cookie % REMEMBERED].cookie) == cookie && found == what;
}

/* --- Input and output within a time limit, whatever the flags of the socket --------------------------------------- */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool wait_for(int fd, short events, int64_t end)
{
    for (;;) {
        int64_t left = end - now_ms();
        if (left <= 0) {
            errno = ETIMEDOUT;
            return false;
        }
        struct pollfd one = {fd, events, 0};
        int found = poll(&one, 1, (int)left);
        if (found > 0)
            return true;
        if (found < 0 && errno != EINTR)
            return false;
    }
}

static bool send_all(int fd, const void *data, size_t size, int64_t end)
{
    for (const char *next = data; size > 0;) {
        ssize_t sent = send(fd, next, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            next += sent;
            size -= (size_t)sent;
        } else if (sent == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLOUT, end)) {
            return false;
        }
    }
    return true;
}

/* As much as there is, up to ``size``; 0 at the end, -1 on failure. */
static ssize_t receive(int fd, void *data, size_t size, int64_t end)
{
    for (;;) {
        ssize_t got = recv(fd, data, size, MSG_DONTWAIT);
        if (got >= 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLIN, end))
            return got;
    }
}

static bool receive_all(int fd, void *data, size_t size, int64_t end)
{
    for (char *next = data; size > 0;) {
        ssize_t got = receive(fd, next, size, end);
        if (got <= 0) {
            if (got == 0)
                errno = ECONNREFUSED;
            return false;
        }
        next += got;
        size -= (size_t)got;
    }
    return true;
}

static int connect_within(int fd, const struct sockaddr *to, socklen_t length, int64_t end)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return -1;
    int result = libc_connect(fd, to, length);
    if (result != 0 && errno == EINPROGRESS && wait_for(fd, POLLOUT, end)) {
        int failure = 0;
        socklen_t size = sizeof failure;
        result = getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size);
        if (result == 0 && failure != 0) {
            errno = failure;
            result = -1;
        }
    }
    int kept = errno;
    fcntl(fd, F_SETFL, flags);
    errno = kept;
    return result;
}

/* --- Whose socket it is ----------------------------------------------------------------------------------------- */

/* The inode of the socket of the daemon's account with these two ends in the kernel's table, or 0; ``peer`` of zeros is a
 * listener's. One that its process has closed shows no inode, and the wrong account, so it does not count. */
static unsigned long owned_by_daemon(struct end local, struct end peer)
{
    FILE *table = fopen("/proc/net/tcp", "re");
    if (table == NULL)
        return 0;
    char line[512];
    unsigned long found = 0;
    while (found == 0 && fgets(line, sizeof line, table) != NULL) {
        unsigned here, here_port, there, there_port, uid;
        unsigned long inode;
        if (sscanf(line, " %*d: %8X:%4X %8X:%4X %*X %*X:%*X %*X:%*X %*X %u %*d %lu", &here, &here_port, &there,
                   &there_port, &uid, &inode) != 6)
            continue;
        if (here == local.address && here_port == ntohs(local.port) && there == peer.address &&
            there_port == ntohs(peer.port) && uid == DAEMON_UID)
            found = inode;
    }
    fclose(table);
    return found;
}

/* Whether the process has this socket. Only its own account and root can look. */
static bool has_socket(pid_t process, unsigned long inode)
{
    char path[64], wanted[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)process);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *open_files = opendir(path);
    if (open_files == NULL)
        return false;
    bool found = false;
    for (struct dirent *one; !found && (one = readdir(open_files)) != NULL;) {
        ssize_t size = readlinkat(dirfd(open_files), one->d_name, target, sizeof target - 1);
        target[size > 0 ? size : 0] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    closedir(open_files);
    return found;
}

/* The answer of tailscaled to one question, with its headers, and its process; false if there is none. */
static bool ask(const char *question, char *answer, size_t room, pid_t *process)
{
    int64_t end = now_ms() + ASK_MS;
    struct sockaddr_un where = {.sun_family = AF_UNIX, .sun_path = API_SOCKET};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    struct ucred server;
    socklen_t length = sizeof server;
    bool told = libc_connect(fd, (void *)&where, sizeof where) == 0 &&
                getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &length) == 0 && server.uid == DAEMON_UID &&
                send_all(fd, question, strlen(question), end);
    size_t size = 0;
    while (told && size < room - 1) {
        ssize_t got = receive(fd, answer + size, room - 1 - size, end);
        if (got < 0)
            told = false;
        if (got <= 0)
            break;
        size += (size_t)got;
    }
    answer[size] = '\0';
    close(fd);
    *process = told ? server.pid : 0;
    return told;
}

/* The mesh address of the member behind a port of 127.0.0.1, or 0. Where tailscaled says that there is none, ``process`` is
 * its own; otherwise 0. */
static in_addr_t whois(in_port_t port, pid_t *process)
{
    char question[200], answer[16384], address[INET_ADDRSTRLEN];
    snprintf(question, sizeof question,
             "GET /localapi/v0/whois?proto=tcp&addr=" SELF ":%u HTTP/1.0\r\nHost: local-tailscaled.sock\r\n\r\n",
             ntohs(port));
    bool answered = ask(question, answer, sizeof answer, process) && strncmp(answer, "HTTP/1.", 7) == 0;
    if (!answered || strncmp(answer + 8, " 404 ", 5) != 0)
        *process = 0;
    if (!answered || strncmp(answer + 8, " 200 ", 5) != 0)
        return 0;
    /* A quotation mark within a string has a backslash before it, so no name of a host can look like this key. */
    const char *list = strstr(answer, "\"Addresses\"");
    list = list != NULL ? strchr(list, '[') : NULL;
    for (const char *next = list; next != NULL && *next != '\0' && *next != ']'; next++) {
        size_t size = strspn(next + 1, "0123456789.");
        if (*next != '"' || size == 0 || size >= sizeof address || next[1 + size] != '/')
            continue;
        memcpy(address, next + 1, size);
        address[size] = '\0';
        in_addr_t found = inet_addr(address);
        if (found != INADDR_NONE && in_mesh(found))
            return found;
    }
    return 0;
}

/* Who is at the other end of a connection from 127.0.0.1. */
enum whose { MEMBER, NOT_YET_KNOWN, OTHER, PROXIED };

/* Whether this process may wait now: one at a time, and not again for a while once that was in vain. */
static _Atomic int64_t next_wait;

/* The member behind a connection. tailscaled connects first, notes whose it is next, and passes data on last. So if there
 * is data, its answer is final; before that, it is for this moment. PROXIED: the proxy has connected an account of this
 * host, which only root can find out. */
static enum whose member_behind(int socket_fd, struct end local, struct end peer, struct end *member)
{
    if (peer.address == self_source) {
        *member = (struct end){mesh_address, peer.port};
        return MEMBER;
    }
    unsigned long inode = 0;
    if (peer.address == self_address && local.address == self_address)
        inode = owned_by_daemon(peer, local);
    if (inode == 0)
        return OTHER;
    int64_t begun = now_ms(), allowed = atomic_load(&next_wait);
    bool may_wait = false, final;
    for (int pause = 1;; pause *= 2) {
        pid_t process;
        struct pollfd data = {socket_fd, POLLIN, 0};
        final = poll(&data, 1, 0) > 0;
        in_addr_t found = whois(peer.port, &process);
        if (found != 0) {
            if (may_wait)
                atomic_store(&next_wait, 0);
            *member = (struct end){found, peer.port};
            return MEMBER;
        }
        if (final && process != 0)
            return has_socket(process, inode) ? PROXIED : OTHER;
        if (pause == 1)
            may_wait = begun >= allowed && atomic_compare_exchange_strong(&next_wait, &allowed, begun + SPARE_MS);
        if (!may_wait || now_ms() + pause > begun + SETTLE_MS)
            return NOT_YET_KNOWN;
        poll(&data, 1, pause);
    }
}

/* Whose connection it is, as it is remembered, or else asked for and remembered. ``errno`` stays as it was. */
static enum whose peer_of(int socket_fd, struct end *member, sa_family_t *family)
{
    int kept = errno;
    struct end local, peer;
    enum whose whose = OTHER;
    bool is_local = ends_of(socket_fd, &local, &peer, family);
    is_local = is_local && (peer.address & htonl(0xff000000)) == htonl(0x7f000000) && is_stream(socket_fd);
    if (is_local && recall(socket_fd, PEER, member)) {
        whose = MEMBER;
    } else if (is_local) {
        uint64_t cookie = cookie_of(socket_fd);
        if (cookie == 0 || atomic_load(&strangers[cookie % STRANGERS]) != cookie)
            whose = member_behind(socket_fd, local, peer, member);
        if (whose == MEMBER)
            remember(socket_fd, PEER, *member);
        else if (whose != NOT_YET_KNOWN)
            atomic_store(&strangers[cookie % STRANGERS], cookie);
    }
    errno = kept;
    return whose;
}

static bool member_of(int socket_fd, struct end *member, sa_family_t *family)
{
    return peer_of(socket_fd, member, family) == MEMBER;
}

/* --- Dialling --------------------------------------------------------------------------------------------------- */

/* Ask the proxy for a connection (RFC 1928). It says only that one failed, so the time it took tells the reason. */
static bool greet_proxy(int fd, struct end to, int64_t end)
{
    const unsigned char hello[] = {5, 1, 0};
    unsigned char request[10] = {5, 1, 0, 1}, answer[4], rest[255 + 2];
    int64_t begun = now_ms();
    if (!send_all(fd, hello, sizeof hello, end) || !receive_all(fd, answer, 2, end))
        return false;
    memcpy(request + 4, &to.address, 4);
    memcpy(request + 8, &to.port, 2);
    if (answer[0] != 5 || answer[1] != 0) {
        errno = ECONNREFUSED;
        return false;
    }
    if (!send_all(fd, request, sizeof request, end) || !receive_all(fd, answer, 4, end))
        return false;
    if (answer[1] != 0) {
        errno = answer[1] == 3 || answer[1] == 4 ? EHOSTUNREACH : now_ms() - begun > PROXY_MS ? ETIMEDOUT : ECONNREFUSED;
        return false;
    }
    size_t size = answer[3] == 4 ? 16 : 4;
    if (answer[3] == 3) {
        if (!receive_all(fd, rest, 1, end))
            return false;
        size = rest[0];
    }
    return receive_all(fd, rest, size + 2, end);
}

static int dial_member(int fd, struct end to, sa_family_t family)
{
    struct end proxy = {proxy_address, htons(PROXY_PORT)};
    if (!owned_by_daemon(proxy, (struct end){0, 0})) {
        errno = ENETUNREACH;
        return -1;
    }
    int64_t end = now_ms() + LIMIT_MS;
    struct sockaddr_storage where;
    socklen_t length = write_end(proxy, family, &where);
    for (;;) {
        if (connect_within(fd, (void *)&where, length, end) != 0)
            return -1;
        if (greet_proxy(fd, to, end)) {
            remember(fd, PEER, to);
            return 0;
        }
        /* As it was, for us or for a caller that tries once more with the same socket. */
        int kept = errno;
        struct sockaddr nothing = {.sa_family = AF_UNSPEC};
        libc_connect(fd, &nothing, sizeof nothing);
        errno = kept == EPIPE || kept == ECONNRESET ? ECONNREFUSED : kept;
        /* A tunnel that was not used for some time may take longer than the proxy has patience. */
        if (errno != ETIMEDOUT || now_ms() >= end)
            return -1;
    }
}

static int dial_self(int fd, struct end to, sa_family_t family)
{
    struct sockaddr_storage where;
    struct end own;
    socklen_t length = sizeof where;
    if (libc_getsockname(fd, (void *)&where, &length) == 0 && read_end((void *)&where, length, &own) && own.port == 0) {
        int on = 1;
        /* The port is chosen by what it is connected to, so that ports do not run out. */
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        length = write_end((struct end){self_source, 0}, family, &where);
        libc_bind(fd, (void *)&where, length);
    }
    remember(fd, PEER, to);
    length = write_end((struct end){self_address, to.port}, family, &where);
    return libc_connect(fd, (void *)&where, length);
}

EXPORT int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    struct end to;
    begin();
    if (!read_end(address, length, &to) || !in_mesh(to.address))
        return libc_connect(fd, address, length);
    if (!is_stream(fd)) {
        /* It sends nothing yet. What it is to send would go out by the network of the provider: see sendto. send and
         * write go to where this is connected: for another member, to a port where no service of this host listens. */
        struct sockaddr_storage where;
        struct end instead = {self_address, to.port}, nobody = {proxy_address, htons(NOBODY_PORT)};
        remember(fd, PEER, to);
        length = write_end(to.address == mesh_address ? instead : nobody, address->sa_family, &where);
        return libc_connect(fd, (void *)&where, length);
    }
    return (to.address == mesh_address ? dial_self : dial_member)(fd, to, address->sa_family);
}

/* Where a datagram goes instead, and the length of that; 0 where the program's own address stays. ``refused``: nowhere, as
 * it is for another member. */
static socklen_t redirected(const struct sockaddr *address, socklen_t length, struct sockaddr_storage *where, bool *refused)
{
    struct end to;
    *refused = false;
    if (!read_end(address, length, &to) || !in_mesh(to.address))
        return 0;
    *refused = to.address != mesh_address;
    if (*refused)
        errno = EHOSTUNREACH;
    return write_end((struct end){self_address, to.port}, address->sa_family, where);
}

EXPORT ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *address, socklen_t length)
{
    struct sockaddr_storage where;
    bool refused;
    begin();
    socklen_t changed = redirected(address, length, &where, &refused);
    if (refused)
        return -1;
    return libc_sendto(fd, data, size, flags, changed ? (void *)&where : address, changed ? changed : length);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct sockaddr_storage where;
    bool refused;
    begin();
    if (message == NULL)
        return libc_sendmsg(fd, message, flags);
    socklen_t changed = redirected(message->msg_name, message->msg_namelen, &where, &refused);
    if (refused)
        return -1;
    if (changed == 0)
        return libc_sendmsg(fd, message, flags);
    struct msghdr other = *message;
    other.msg_name = &where;
    other.msg_namelen = changed;
    return libc_sendmsg(fd, &other, flags);
}

/* As the kernel does it: the number of those that were sent, and a failure only if it was none. */
EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    unsigned first;
    struct end to;
    begin();
    for (first = 0; messages != NULL && first < count; first++)
        if (read_end(messages[first].msg_hdr.msg_name, messages[first].msg_hdr.msg_namelen, &to) && in_mesh(to.address))
            break;
    if (messages == NULL || first == count)
        return libc_sendmmsg(fd, messages, count, flags);
    for (unsigned sent = 0; sent < count; sent++) {
        ssize_t size = sendmsg(fd, &messages[sent].msg_hdr, flags);
        if (size < 0)
            return sent > 0 ? (int)sent : -1;
        messages[sent].msg_len = (unsigned)size;
    }
    return (int)count;
}

/* --- Listening, and the names of both ends ------------------------------------------------------------------------- */

EXPORT int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    struct end to;
    begin();
    if (!read_end(address, length, &to) || to.address != mesh_address)
        return libc_bind(fd, address, length);
    struct sockaddr_storage where;
    length = write_end((struct end){self_address, to.port}, address->sa_family, &where);
    int result = libc_bind(fd, (void *)&where, length);
    if (result == 0)
        remember(fd, BOUND, to);
    return result;
}

/* What the proxy has brought is not for the services of root: they get the next connection instead. */
EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    struct end member;
    sa_family_t family;
    begin();
    socklen_t room = address != NULL && length != NULL ? *length : 0;
    for (;;) {
        int taken = libc_accept4(fd, address, length, flags);
        enum whose whose = taken >= 0 ? peer_of(taken, &member, &family) : OTHER;
        if (whose == MEMBER && address != NULL && length != NULL)
            give_end(member, family, address, room, length);
        if (whose != PROXIED)
            return taken;
        close(taken);
        if (address != NULL && length != NULL)
            *length = room;
    }
}

EXPORT int accept(int fd, struct sockaddr *address, socklen_t *length)
{
    return accept4(fd, address, length, 0);
}

EXPORT int getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
    struct end member;
    sa_family_t family;
    begin();
    socklen_t room = length != NULL ? *length : 0;
    int result = libc_getpeername(fd, address, length);
    if (result == 0 && (member_of(fd, &member, &family) ||
                        (!is_stream(fd) && read_end(address, *length, &member) && recall(fd, PEER, &member))))
        give_end(member, address->sa_family, address, room, length);
    return result;
}

EXPORT int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    struct end local, member;
    sa_family_t family;
    begin();
    socklen_t room = length != NULL ? *length : 0;
    int result = libc_getsockname(fd, address, length);
    if (result != 0 || !read_end(address, *length, &local) ||
        (local.address & htonl(0xff000000)) != htonl(0x7f000000))
        return result;
    if (recall(fd, BOUND, &member) || recall(fd, PEER, &member) || member_of(fd, &member, &family))
        give_end((struct end){mesh_address, local.port}, address->sa_family, address, room, length);
    return result;
}

/* --- The interface ---------------------------------------------------------------------------------------------- */

static char interface_name[] = MESH_INTERFACE;

struct interface {
    struct ifaddrs head; /* first, so that a pointer to it is one to the whole */
    struct sockaddr_in address, mask;
};

EXPORT int getifaddrs(struct ifaddrs **list)
{
    begin();
    int result = libc_getifaddrs(list);
    if (result != 0)
        return result;
    struct interface *ours = calloc(1, sizeof *ours);
    if (ours == NULL) {
        libc_freeifaddrs(*list);
        errno = ENOMEM;
        return -1;
    }
    ours->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = mesh_address};
    ours->mask = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = INADDR_NONE};
    ours->head = (struct ifaddrs){.ifa_next = *list,
                                  .ifa_name = interface_name,
                                  .ifa_flags = IFF_UP | IFF_RUNNING | IFF_POINTOPOINT | IFF_NOARP,
                                  .ifa_addr = (void *)&ours->address,
                                  .ifa_netmask = (void *)&ours->mask};
    *list = &ours->head;
    return 0;
}

EXPORT void freeifaddrs(struct ifaddrs *list)
{
    begin();
    if (list != NULL && list->ifa_name == interface_name) {
        struct ifaddrs *rest = list->ifa_next;
        free(list);
        list = rest;
    }
    libc_freeifaddrs(list);
}
