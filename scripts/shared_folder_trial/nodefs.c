/* A file system that shows a folder as a client of NFS does: each mount is a client, the folder is the server.

   nodefs FOLDER MOUNT TTL DELAY_US LOSE HOW LOCKS FOLDERS

   Attributes, names, missing names and listings stay cached for TTL seconds. Opening a file asks for its attributes, and
   keeps its cached pages only if they are unchanged (close-to-open consistency). With FOLDERS "fresh", opening a folder
   asks for its attributes as well, and then what was missing is looked up again; with "stale" it does not. A file that
   another client removed is stale (ESTALE). RENAME_NOREPLACE is unknown. With LOCKS "server", flock is a lock of the
   server, which needs a file that is open for writing to exclude others; with "local" it holds on this client only. Every
   call takes DELAY_US.
   Every LOSEth link into a folder `.claims` is made, and its answer is lost: HOW "eio" reports an error, as a soft mount
   does, and "again" repeats the request, as a hard mount does. */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 314
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS 4096
#define MISSING 4096
#define RECENT_MS 50 /* Times of files are too coarse to tell whether a file changed since. */

struct node {
    int fd; /* O_PATH */
    dev_t dev;
    ino_t ino;
    uint64_t lookups;
    int removed_here;
    struct timespec mtime; /* When the pages in the cache were read. */
    off_t size;
    struct node *next;
};

struct handle {
    int fd;
    int flags;
    DIR *dir;
};

static struct node root;
static struct node *nodes[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fuse_session *session;
static double ttl;
static int delay_us, lose, lose_again, server_locks, fresh_folders;
static atomic_int claims;

/* The names that were missing last. */
static struct missing {
    fuse_ino_t parent;
    char name[256];
} missing[MISSING];
static unsigned last_missing;

static struct node *node_of(fuse_ino_t ino) { return ino == FUSE_ROOT_ID ? &root : (struct node *)ino; }
static struct handle *handle_of(struct fuse_file_info *file) { return (struct handle *)file->fh; }
static struct node **bucket(dev_t dev, ino_t ino) { return &nodes[(ino ^ dev) % BUCKETS]; }

static void wait_for_server(void)
{
    if (delay_us)
        usleep(delay_us);
}

static const char *path_of(int fd, char path[64])
{
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return path;
}

static int stat_node(struct node *node, struct stat *st)
{
    if (fstatat(node->fd, "", st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
        return errno;
    return st->st_nlink == 0 && !node->removed_here ? ESTALE : 0;
}

static int enter(fuse_ino_t parent, const char *name, struct fuse_entry_param *entry)
{
    memset(entry, 0, sizeof *entry);
    entry->attr_timeout = entry->entry_timeout = ttl;
    int fd = openat(node_of(parent)->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    if (fstatat(fd, "", &entry->attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) {
        int error = errno;
        close(fd);
        return error;
    }
    pthread_mutex_lock(&lock);
    struct node **at = bucket(entry->attr.st_dev, entry->attr.st_ino), *node = *at;
    while (node && !(node->ino == entry->attr.st_ino && node->dev == entry->attr.st_dev))
        node = node->next;
    if (node) {
        close(fd);
    } else {
        node = calloc(1, sizeof *node);
        *node = (struct node){.fd = fd, .dev = entry->attr.st_dev, .ino = entry->attr.st_ino, .size = -1, .next = *at};
        *at = node;
    }
    node->lookups++;
    pthread_mutex_unlock(&lock);
    entry->ino = (fuse_ino_t)node;
    return 0;
}

/* Marks the file that this client is about to remove, so that it stays readable here. */
static void removing(fuse_ino_t parent, const char *name)
{
    struct stat st;
    if (fstatat(node_of(parent)->fd, name, &st, AT_SYMLINK_NOFOLLOW))
        return;
    pthread_mutex_lock(&lock);
    for (struct node *node = *bucket(st.st_dev, st.st_ino); node; node = node->next)
        if (node->ino == st.st_ino && node->dev == st.st_dev && st.st_nlink == 1)
            node->removed_here = 1;
    pthread_mutex_unlock(&lock);
}

static void reply_entry(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry;
    int error = enter(parent, name, &entry);
    if (error)
        fuse_reply_err(req, error);
    else
        fuse_reply_entry(req, &entry);
}

static void op_init(void *data, struct fuse_conn_info *connection)
{
    (void)data;
    connection->want |= connection->capable & (FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_PARALLEL_DIROPS);
    if (server_locks)
        connection->want |= FUSE_CAP_FLOCK_LOCKS;
    connection->want &= ~(unsigned)(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_WRITEBACK_CACHE);
}

static void remember_missing(fuse_ino_t parent, const char *name)
{
    pthread_mutex_lock(&lock);
    struct missing *to = &missing[last_missing++ % MISSING];
    to->parent = parent;
    snprintf(to->name, sizeof to->name, "%s", name);
    pthread_mutex_unlock(&lock);
}

/* Makes the kernel ask again for the names that were missing in a folder. */
static void forget_missing(fuse_ino_t parent)
{
    for (size_t at = 0; at < MISSING; at++) {
        char name[sizeof missing->name] = "";
        pthread_mutex_lock(&lock);
        if (missing[at].parent == parent) {
            memcpy(name, missing[at].name, sizeof name);
            missing[at].parent = 0;
        }
        pthread_mutex_unlock(&lock);
        if (name[0])
            fuse_lowlevel_notify_inval_entry(session, parent, name, strlen(name));
    }
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    wait_for_server();
    struct fuse_entry_param entry;
    int error = enter(parent, name, &entry);
    if (error == ENOENT) {
        remember_missing(parent, name);
        entry.ino = 0; /* A missing name is cached as well. */
        fuse_reply_entry(req, &entry);
    } else if (error) {
        fuse_reply_err(req, error);
    } else {
        fuse_reply_entry(req, &entry);
    }
}

static void forget(fuse_ino_t ino, uint64_t lookups)
{
    struct node *node = node_of(ino);
    if (node == &root)
        return;
    pthread_mutex_lock(&lock);
    node->lookups -= lookups;
    if (node->lookups == 0) {
        struct node **at = bucket(node->dev, node->ino);
        while (*at != node)
            at = &(*at)->next;
        *at = node->next;
        close(node->fd);
        free(node);
    }
    pthread_mutex_unlock(&lock);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups)
{
    forget(ino, lookups);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *all)
{
    for (size_t at = 0; at < count; at++)
        forget(all[at].ino, all[at].nlookup);
    fuse_reply_none(req);
}

static void reply_attributes(fuse_req_t req, fuse_ino_t ino)
{
    struct stat st;
    int error = stat_node(node_of(ino), &st);
    if (error)
        fuse_reply_err(req, error);
    else
        fuse_reply_attr(req, &st, ttl);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    (void)file;
    wait_for_server();
    reply_attributes(req, ino);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int what, struct fuse_file_info *file)
{
    (void)file;
    wait_for_server();
    char path[64];
    path_of(node_of(ino)->fd, path);
    int failed = 0;
    if (what & FUSE_SET_ATTR_MODE)
        failed |= chmod(path, st->st_mode);
    if (what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        failed |= chown(path, what & FUSE_SET_ATTR_UID ? st->st_uid : (uid_t)-1,
                        what & FUSE_SET_ATTR_GID ? st->st_gid : (gid_t)-1);
    if (what & FUSE_SET_ATTR_SIZE)
        failed |= truncate(path, st->st_size);
    if (what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) {
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
        if (what & FUSE_SET_ATTR_ATIME)
            times[0] = st->st_atim;
        if (what & FUSE_SET_ATTR_ATIME_NOW)
            times[0].tv_nsec = UTIME_NOW;
        if (what & FUSE_SET_ATTR_MTIME)
            times[1] = st->st_mtim;
        if (what & FUSE_SET_ATTR_MTIME_NOW)
            times[1].tv_nsec = UTIME_NOW;
        failed |= utimensat(AT_FDCWD, path, times, 0);
    }
    if (failed)
        fuse_reply_err(req, errno);
    else
        reply_attributes(req, ino);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char target[4096];
    ssize_t length = readlinkat(node_of(ino)->fd, "", target, sizeof target - 1);
    if (length < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    target[length] = 0;
    fuse_reply_readlink(req, target);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    wait_for_server();
    if (mkdirat(node_of(parent)->fd, name, mode))
        fuse_reply_err(req, errno);
    else
        reply_entry(req, parent, name);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    wait_for_server();
    if (symlinkat(target, node_of(parent)->fd, name))
        fuse_reply_err(req, errno);
    else
        reply_entry(req, parent, name);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    wait_for_server();
    removing(parent, name);
    fuse_reply_err(req, unlinkat(node_of(parent)->fd, name, 0) ? errno : 0);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    wait_for_server();
    fuse_reply_err(req, unlinkat(node_of(parent)->fd, name, AT_REMOVEDIR) ? errno : 0);
}

static void op_rename(fuse_req_t req, fuse_ino_t from, const char *name, fuse_ino_t to, const char *new, unsigned flags)
{
    wait_for_server();
    if (flags) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    removing(to, new);
    fuse_reply_err(req, renameat(node_of(from)->fd, name, node_of(to)->fd, new) ? errno : 0);
}

static int is_claim(fuse_ino_t parent)
{
    char path[64], folder[4096] = "";
    path_of(node_of(parent)->fd, path);
    ssize_t length = readlink(path, folder, sizeof folder - 1);
    return length > 8 && strcmp(folder + length - 8, "/.claims") == 0;
}

static int link_node(fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    char path[64];
    path_of(node_of(ino)->fd, path);
    return linkat(AT_FDCWD, path, node_of(parent)->fd, name, AT_SYMLINK_FOLLOW) ? errno : 0;
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    wait_for_server();
    int error = link_node(ino, parent, name);
    if (!error && lose && is_claim(parent) && atomic_fetch_add(&claims, 1) % lose == lose - 1) {
        fprintf(stderr, "lost the answer: %s\n", name);
        error = lose_again ? link_node(ino, parent, name) : EIO;
    }
    if (error)
        fuse_reply_err(req, error);
    else
        reply_entry(req, parent, name);
}

static int is_recent(const struct stat *st)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    long ms = (now.tv_sec - st->st_mtim.tv_sec) * 1000 + (now.tv_nsec - st->st_mtim.tv_nsec) / 1000000;
    return ms < RECENT_MS && ms > -RECENT_MS;
}

/* Opens a file as NFS does: with the server's attributes, and with the cached pages only if they are unchanged. */
static void prepare_open(struct node *node, int fd, struct fuse_file_info *file)
{
    struct stat st;
    fstat(fd, &st);
    struct timespec mtime = st.st_mtim;
    pthread_mutex_lock(&lock);
    int same = node->size == st.st_size && node->mtime.tv_sec == mtime.tv_sec && node->mtime.tv_nsec == mtime.tv_nsec;
    node->size = is_recent(&st) ? -1 : st.st_size;
    node->mtime = mtime;
    pthread_mutex_unlock(&lock);
    file->keep_cache = same;
    fuse_lowlevel_notify_inval_inode(session, (fuse_ino_t)node, -1, 0);
    struct handle *handle = calloc(1, sizeof *handle);
    *handle = (struct handle){.fd = fd, .flags = file->flags};
    file->fh = (uint64_t)handle;
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    wait_for_server();
    struct stat st;
    struct node *node = node_of(ino);
    int error = stat_node(node, &st);
    char path[64];
    int fd = error ? -1 : open(path_of(node->fd, path), (file->flags & ~O_NOFOLLOW) | O_CLOEXEC);
    if (fd < 0) {
        fuse_reply_err(req, error ? error : errno);
        return;
    }
    prepare_open(node, fd, file);
    fuse_reply_open(req, file);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file)
{
    wait_for_server();
    struct fuse_entry_param entry;
    int fd = openat(node_of(parent)->fd, name, (file->flags | O_CREAT | O_CLOEXEC) & ~O_NOFOLLOW, mode);
    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    int error = enter(parent, name, &entry);
    if (error) {
        close(fd);
        fuse_reply_err(req, error);
        return;
    }
    prepare_open(node_of(entry.ino), fd, file);
    fuse_reply_create(req, &entry, file);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    (void)ino;
    struct handle *handle = handle_of(file);
    close(handle->fd);
    free(handle);
    fuse_reply_err(req, 0);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *file)
{
    wait_for_server();
    struct stat st;
    int error = stat_node(node_of(ino), &st);
    char *bytes = error ? NULL : malloc(size);
    ssize_t got = error ? -1 : pread(handle_of(file)->fd, bytes, size, offset);
    if (got < 0)
        fuse_reply_err(req, error ? error : errno);
    else
        fuse_reply_buf(req, bytes, got);
    free(bytes);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *bytes, size_t size, off_t offset,
                     struct fuse_file_info *file)
{
    wait_for_server();
    struct stat st;
    int error = stat_node(node_of(ino), &st);
    ssize_t wrote = error ? -1 : pwrite(handle_of(file)->fd, bytes, size, offset);
    if (wrote < 0)
        fuse_reply_err(req, error ? error : errno);
    else
        fuse_reply_write(req, wrote);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int only_data, struct fuse_file_info *file)
{
    (void)ino, (void)only_data, (void)file;
    wait_for_server(); /* Nobody cuts the power of this server. */
    fuse_reply_err(req, 0);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    wait_for_server();
    struct stat st;
    int fd = openat(node_of(ino)->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        fuse_reply_err(req, errno);
        return;
    }
    struct handle *handle = calloc(1, sizeof *handle);
    handle->fd = fd;
    handle->dir = fdopendir(fd);
    file->fh = (uint64_t)handle;
    if (fresh_folders) {
        fuse_lowlevel_notify_inval_inode(session, ino, -1, 0);
        forget_missing(ino);
    }
    /* The kernel keeps the listing until it sees another modification time, whose cache ends after `ttl`. */
    file->cache_readdir = !is_recent(&st);
    file->keep_cache = 1;
    fuse_reply_open(req, file);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *file)
{
    (void)ino;
    wait_for_server();
    DIR *dir = handle_of(file)->dir;
    char *bytes = malloc(size);
    size_t used = 0;
    seekdir(dir, offset);
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat st = {.st_ino = entry->d_ino, .st_mode = (mode_t)entry->d_type << 12};
        size_t needs = fuse_add_direntry(req, bytes + used, size - used, entry->d_name, &st, entry->d_off);
        if (needs > size - used)
            break;
        used += needs;
    }
    fuse_reply_buf(req, bytes, used);
    free(bytes);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    (void)ino;
    struct handle *handle = handle_of(file);
    closedir(handle->dir);
    free(handle);
    fuse_reply_err(req, 0);
}

static void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file, int how)
{
    (void)ino;
    struct handle *handle = handle_of(file);
    int mode = handle->flags & O_ACCMODE, kind = how & ~LOCK_NB;
    if ((kind == LOCK_EX && mode == O_RDONLY) || (kind == LOCK_SH && mode == O_WRONLY))
        fuse_reply_err(req, EBADF);
    else
        fuse_reply_err(req, flock(handle->fd, how) ? errno : 0);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    (void)ino;
    struct statvfs st;
    fstatvfs(root.fd, &st);
    fuse_reply_statfs(req, &st);
}

int main(int count, char **words)
{
    if (count != 9) {
        fprintf(stderr, "usage: nodefs FOLDER MOUNT TTL DELAY_US LOSE eio|again server|local fresh|stale\n");
        return 2;
    }
    umask(0);
    root.fd = open(words[1], O_PATH | O_DIRECTORY);
    ttl = atof(words[3]);
    delay_us = atoi(words[4]);
    lose = atoi(words[5]);
    lose_again = strcmp(words[6], "again") == 0;
    server_locks = strcmp(words[7], "server") == 0;
    fresh_folders = strcmp(words[8], "fresh") == 0;
    struct fuse_lowlevel_ops ops = {
        .init = op_init, .lookup = op_lookup, .forget = op_forget, .forget_multi = op_forget_multi,
        .getattr = op_getattr, .setattr = op_setattr, .readlink = op_readlink, .mkdir = op_mkdir,
        .symlink = op_symlink, .unlink = op_unlink, .rmdir = op_rmdir, .rename = op_rename, .link = op_link,
        .open = op_open, .create = op_create, .release = op_release, .read = op_read, .write = op_write,
        .fsync = op_fsync, .opendir = op_opendir, .readdir = op_readdir,
        .releasedir = op_releasedir, .fsyncdir = op_fsync, .statfs = op_statfs,
    };
    if (server_locks)
        ops.flock = op_flock;
    char *arguments[] = {words[0], "-o", "fsname=xrun-trial,subtype=nodefs"};
    struct fuse_args args = FUSE_ARGS_INIT(3, arguments);
    session = fuse_session_new(&args, &ops, sizeof ops, NULL);
    if (root.fd < 0 || !session || fuse_session_mount(session, words[2])) {
        fprintf(stderr, "cannot show %s at %s\n", words[1], words[2]);
        return 1;
    }
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(config, 64);
    int failed = fuse_session_loop_mt(session, config);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    return failed != 0;
}
