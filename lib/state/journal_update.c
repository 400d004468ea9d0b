/* SPDX-License-Identifier: Apache-2.0 */
/* journal_update.c - changes the records of other pushes. One lock serializes all changes. Each
 * file is read again under the lock, because a repair and a push may change the same file. */
#include "journal_core.h"

#include "file.h"
#include "lock.h"
#include "wsync/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int write_entry(struct ws_journal_entry *e, struct ws_err *err)
{
	if (!e->record.n_endpoints) {
		if (unlink(e->path) && errno != ENOENT)
			return ws_err_errno(err, "remove %s", e->path);
		return 0;
	}
	return ws_journal_write(e->path, &e->record, err);
}

static void apply(struct ws_journal_record *r, const struct ws_journal_endpoint *now, size_t n)
{
	size_t kept = 0;
	for (size_t i = 0; i < r->n_endpoints; i++) {
		const struct ws_journal_endpoint *news =
			ws_journal_find(now, n, r->endpoints[i].url);
		struct ws_journal_endpoint is = r->endpoints[i];
		if (news) {
			is = *news;
			is.url = r->endpoints[i].url;
			is.version = r->endpoints[i].version;
		}
		if (!news || ws_journal_owes(&is))
			r->endpoints[kept++] = is;
	}
	r->n_endpoints = kept;
}

/* Reads the file again, because others may have changed it. now NULL: `used` becomes true. */
static int update_locked(const char *path, const struct ws_journal_endpoint *now, size_t n,
                         struct ws_err *err)
{
	struct ws_journal_entry e = { .path = (char *)(uintptr_t)path, .err = WS_ERR_INIT };
	if (access(path, F_OK) && errno == ENOENT)
		return 0;
	ws_journal_read(&e);
	if (e.err.code) {
		if (err)
			*err = e.err;
		return -1;
	}
	e.record.staged.used = e.record.staged.used || !now;
	if (now)
		apply(&e.record, now, n);
	const int rc = write_entry(&e, err);
	ws_journal_drop(&e.record, e.priv);
	return rc;
}

int ws_journal_update(const char *path, const struct ws_journal_endpoint *now, size_t n,
                      struct ws_err *err)
{
	char *lock = NULL;
	const char *slash = strrchr(path, '/');
	if (asprintf(&lock, "%.*s/.lock", slash ? (int)(slash - path) : 1, slash ? path : ".") < 0)
		return ws_oom(err);
	const int fd = ws_file_lock(lock, WS_FILE_OWN, ws_deadline_in(5 * WS_NS_PER_S), NULL, err);
	const int rc = fd < 0 ? -1 : update_locked(path, now, n, err);
	ws_file_unlock(fd);
	free(lock);
	return rc;
}

int ws_journal_use_written(struct ws_journal_entry *e, struct ws_err *err)
{
	return ws_journal_update(e->path, NULL, 0, err);
}

int ws_journal_change(struct ws_journal_entry *e, const struct ws_journal_endpoint *now, size_t n,
                      struct ws_err *err)
{
	if (e->path)
		return ws_journal_update(e->path, now, n, err);
	apply(&e->record, now, n);
	return 0;
}

static bool is_among(const char *url, const char *const *urls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ws_endpoint_same(urls[i], url))
			return true;
	return false;
}

bool ws_journal_completes(const struct ws_journal_sent *sent, const struct ws_journal_record *r,
                          const struct ws_journal_endpoint *e)
{
	const bool as_large = sent->tensors >= r->tensors && sent->bytes >= r->bytes;
	if (sent->digest == r->digest && as_large)
		return true;
	if (e->state != WS_PARTIAL)
		return sent->whole;
	return e->inherited || (sent->whole && (sent->checked || as_large));
}

/* Forgets these endpoints (n 0: all). With sent: only those that a push of it completes, and their
 * groups and open updates stay recorded. */
static int forget(struct ws_journal_entry *e, const char *const *urls, size_t n,
                  const struct ws_journal_sent *sent, struct ws_err *err)
{
	const bool groups = !sent;
	const struct ws_journal_record *r = &e->record;
	struct ws_journal_endpoint *gone = calloc(r->n_endpoints + 1, sizeof *gone);
	size_t k = 0;
	if (!gone)
		return ws_oom(err);
	for (size_t i = 0; i < r->n_endpoints; i++)
		if ((n == 0 || is_among(r->endpoints[i].url, urls, n)) &&
		    (!sent || ws_journal_completes(sent, r, &r->endpoints[i])))
			gone[k++] = (struct ws_journal_endpoint){
				.url = r->endpoints[i].url, .phase = WS_PHASE_DESTROY,
				.grouped = r->endpoints[i].grouped && !groups,
				.open_update =
					groups ? WS_UPDATE_NONE : r->endpoints[i].open_update,
			};
	const int rc = k ? ws_journal_change(e, gone, k, err) : 0;
	free(gone);
	return rc;
}

/* Locks the endpoints of the record that are among the urls (n 0: all of them). e->path is
 * STATE_DIR/pushes/NAME. */
static int lock_endpoints(const struct ws_journal_entry *e, const char *const *urls, size_t n,
                          struct ws_locks **out, struct ws_err *err)
{
	const struct ws_journal_record *r = &e->record;
	const char **those = calloc(r->n_endpoints + 1, sizeof *those);
	char *state = strdup(e->path), *slash, *dir = NULL;
	size_t k = 0;
	for (int i = 0; state && i < 2 && (slash = strrchr(state, '/')); i++)
		*slash = 0;
	if (state)
		dir = ws_journal_locks(state);
	for (size_t i = 0; those && i < r->n_endpoints; i++)
		if (n == 0 || is_among(r->endpoints[i].url, urls, n))
			those[k++] = r->endpoints[i].url;
	const int rc = those && dir ? ws_locks_take(dir, those, k, 0, NULL, out, err) : ws_oom(err);
	free(those);
	free(state);
	free(dir);
	return rc;
}

int ws_journal_forget(struct ws_journal_entry *e, const char *const *urls, size_t n,
                      struct ws_err *err)
{
	struct ws_locks *locks = NULL;
	/* A live process has its endpoints locked, except between two of its sources. It reads its
	 * record again before the next source. */
	if (e->fate == WS_PROCESS_ALIVE && lock_endpoints(e, urls, n, &locks, err))
		return -1;
	const int rc = forget(e, urls, n, NULL, err);
	ws_locks_drop(locks);
	return rc;
}

/* Weights that were woken by hand have values again. What else was done by hand does not end with
 * a push (deeds.h). */
static void end_by_hand(struct ws_journal_entry *e, const char *const *urls, size_t n,
                        const struct ws_journal_sent *sent)
{
	if (!sent->ok || !sent->whole)
		return;
	for (size_t i = e->record.n_endpoints; i-- > 0;) {
		struct ws_journal_endpoint now = e->record.endpoints[i];
		if (now.state != WS_PARTIAL || !is_among(now.url, urls, n))
			continue;
		now.state = WS_COMMITTED;
		ws_journal_change(e, &now, 1, NULL);
	}
}

void ws_journal_clear(struct ws_journal_list *list, const char *own, const char *const *urls,
                      size_t n, const struct ws_journal_sent *sent)
{
	for (size_t i = list->n; n && i-- > 0;) {
		struct ws_journal_entry *e = &list->items[i];
		if (e->err.code || (e->path && own && strcmp(e->path, own) == 0))
			continue;
		if (!sent->refused && e->record.by_hand)
			end_by_hand(e, urls, n, sent);
		else if (!sent->refused)
			forget(e, urls, n, sent, NULL);
		if (e->path || e->record.n_endpoints)
			continue;
		ws_journal_drop(&e->record, e->priv);
		memmove(e, e + 1, (--list->n - i) * sizeof *e);
	}
}
