/* SPDX-License-Identifier: Apache-2.0 */
/* lora_pattern.c - Python's regular expressions: the keys of rank_pattern and alpha_pattern,
 * target_modules.
 *
 * PEFT evaluates re.match("(.*\.)?(KEY)$", module), and re.fullmatch(target_modules, module). The
 * only result is yes or no. So the matcher keeps the set of all positions in the name that the
 * pattern can have reached. There is no backtracking. A hostile pattern costs at most
 * MAX_STEPS, and all comparisons of an adapter WS_LORA_MAX_WORK.
 *
 *   supported: literals . [...] \d \w \s and their opposites, escapes such as \., (...) (?:...)
 *              | * + ? {n,m} and their lazy forms, ^ $
 *   refused:   look-around, back-references, flags */
#include "lora_priv.h"

#include <ctype.h>
#include <string.h>

enum { MAX_NAME = WS_LORA_MAX_NAME, WORDS = MAX_NAME / 64 + 1, MAX_DEPTH = 16, MAX_STEPS = 20000,
       STEP_WORK = 16 };

struct set {
	uint64_t words[WORDS];
};

struct matcher {
	const char *name;
	size_t n;
	const char *p, *end; /* rest of the pattern */
	unsigned depth, steps;
	uint64_t *left;      /* see ws_lora_spend */
	const char *wrong;   /* why the pattern cannot be used; NULL: nothing so far */
};

bool ws_lora_spend(uint64_t *left, uint64_t work)
{
	const bool can = *left >= work;
	*left = can ? *left - work : 0;
	return can;
}

static bool holds(const struct set *s, size_t i)
{
	return s->words[i / 64] >> i % 64 & 1;
}

static void put(struct set *s, size_t i)
{
	s->words[i / 64] |= UINT64_C(1) << i % 64;
}

static bool is_empty(const struct set *s)
{
	uint64_t any = 0;
	for (size_t i = 0; i < WORDS; i++)
		any |= s->words[i];
	return !any;
}

static void unite(struct set *s, const struct set *with)
{
	for (size_t i = 0; i < WORDS; i++)
		s->words[i] |= with->words[i];
}

static struct set refuse(struct matcher *m, const char *why)
{
	if (!m->wrong)
		m->wrong = why;
	m->p = m->end;
	return (struct set){ { 0 } };
}

/* ---- single characters ---- */

/* The bytes that an atom matches. */
struct bytes {
	bool has[256];
};

static bool is_word(int c)
{
	return isalnum(c) || c == '_';
}

/* Adds the bytes of \d, \w, \s, \D, \W or \S. False: kind is none of these. */
static bool add_kind(struct bytes *b, char kind)
{
	if (!strchr("dwsDWS", kind) || !kind)
		return false;
	for (int c = 0; c < 256; c++) {
		const int k = tolower(kind);
		const bool in = k == 'd' ? isdigit(c) : k == 'w' ? is_word(c) : isspace(c);
		b->has[c] |= in == (k == kind);
	}
	return true;
}

static bool add_escape(struct matcher *m, struct bytes *b)
{
	const char c = m->p < m->end ? *m->p++ : 0;
	if (add_kind(b, c))
		return true;
	if (isalnum((unsigned char)c) || !c)
		return false;
	b->has[(unsigned char)c] = true;
	return true;
}

static bool read_class(struct matcher *m, struct bytes *b)
{
	const bool opposite = m->p < m->end && *m->p == '^';
	m->p += opposite;
	for (bool first = true; m->p < m->end && (first || *m->p != ']'); first = false) {
		const unsigned char c = (unsigned char)*m->p++;
		if (c == '\\') {
			if (!add_escape(m, b))
				return false;
			continue;
		}
		unsigned char last = c;
		if (m->end - m->p >= 2 && m->p[0] == '-' && m->p[1] != ']') {
			last = (unsigned char)m->p[1];
			m->p += 2;
		}
		if (last < c || last == '\\')
			return false;
		for (int k = c; k <= last; k++)
			b->has[k] = true;
	}
	for (int c = 0; opposite && c < 256; c++)
		b->has[c] = !b->has[c];
	return m->p < m->end && *m->p++ == ']';
}

static struct set step(const struct matcher *m, const struct set *in, const struct bytes *b)
{
	struct set out = { { 0 } };
	for (size_t i = 0; i < m->n; i++)
		if (holds(in, i) && b->has[(unsigned char)m->name[i]])
			put(&out, i + 1);
	return out;
}

static struct set only(const struct set *in, size_t place)
{
	struct set out = { { 0 } };
	if (holds(in, place))
		put(&out, place);
	return out;
}

/* ---- the grammar ---- */

static struct set alternatives(struct matcher *m, const struct set *in);

static struct set group(struct matcher *m, const struct set *in)
{
	if (m->p < m->end && *m->p == '?') {
		if (m->end - m->p < 2 || m->p[1] != ':')
			return refuse(m, "(?...) is not understood but for (?:...)");
		m->p += 2;
	}
	if (++m->depth > MAX_DEPTH)
		return refuse(m, "its groups are too deep");
	const struct set out = alternatives(m, in);
	m->depth--;
	if (m->p >= m->end || *m->p != ')')
		return refuse(m, "a group has no end");
	m->p++;
	return out;
}

static struct set atom(struct matcher *m, const struct set *in)
{
	struct bytes b = { { 0 } };
	const char c = *m->p++;
	if (++m->steps > MAX_STEPS)
		return refuse(m, "it is too complicated");
	if (!ws_lora_spend(m->left, STEP_WORK))
		return refuse(m, "the patterns of the adapter together are too complicated");
	switch (c) {
	case '(':
		return group(m, in);
	case '^':
		return only(in, 0);
	case '$':
		return only(in, m->n);
	case '[':
		return read_class(m, &b) ? step(m, in, &b) : refuse(m, "a [...] is not understood");
	case '\\':
		return add_escape(m, &b) ? step(m, in, &b) :
		                           refuse(m, "an escape is not understood");
	case '*':
	case '+':
	case '?':
		return refuse(m, "it repeats nothing");
	case '.':
		memset(b.has, true, sizeof b.has);
		break;
	default:
		b.has[(unsigned char)c] = true;
	}
	return step(m, in, &b);
}

static unsigned read_count(struct matcher *m, unsigned otherwise)
{
	if (m->p >= m->end || !isdigit((unsigned char)*m->p))
		return otherwise;
	unsigned n = 0;
	for (; m->p < m->end && isdigit((unsigned char)*m->p); m->p++)
		n = n > MAX_NAME ? n : n * 10 + (unsigned)(*m->p - '0');
	return n;
}

/* False: the atom is not repeated. A brace without counts stands for itself, as in Python. */
static bool read_repeat(struct matcher *m, unsigned *least, unsigned *most)
{
	const char c = m->p < m->end ? *m->p : 0;
	const char *const begin = m->p;
	*least = c == '+';
	*most = c == '?' ? 1 : MAX_NAME;
	if (c != '*' && c != '+' && c != '?' && c != '{')
		return false;
	m->p++;
	if (c == '{') {
		const char *const digits = m->p;
		*least = *most = read_count(m, 0);
		const bool comma = m->p < m->end && *m->p == ',';
		m->p += comma;
		if (comma)
			*most = read_count(m, MAX_NAME);
		if (m->p >= m->end || *m->p != '}' || m->p == digits) {
			m->p = begin;
			return false;
		}
		m->p++;
	}
	if (m->p < m->end && (*m->p == '?' || *m->p == '+')) /* lazy or possessive */
		m->p++;
	return true;
}

static struct set repeat(struct matcher *m, const char *what, const struct set *in, unsigned least,
                         unsigned most)
{
	struct set reached = *in, all = { { 0 } };
	for (unsigned i = 0; i <= most && !is_empty(&reached) && !m->wrong; i++) {
		if (i >= least) {
			const struct set before = all;
			unite(&all, &reached);
			if (memcmp(&before, &all, sizeof all) == 0)
				break;
		}
		m->p = what;
		const struct set before = reached;
		reached = atom(m, &reached);
		/* Then all later rounds reach the same. */
		if (memcmp(&before, &reached, sizeof before) == 0) {
			if (least <= most)
				unite(&all, &reached);
			break;
		}
	}
	return all;
}

static struct set sequence(struct matcher *m, const struct set *in)
{
	struct set now = *in;
	while (m->p < m->end && *m->p != '|' && *m->p != ')') {
		const char *const what = m->p;
		const struct set before = now;
		unsigned least, most;
		now = atom(m, &before);
		if (!read_repeat(m, &least, &most))
			continue;
		const char *const behind = m->p;
		now = repeat(m, what, &before, least, most);
		m->p = m->wrong ? m->end : behind;
	}
	return now;
}

static struct set alternatives(struct matcher *m, const struct set *in)
{
	struct set out = sequence(m, in);
	while (m->p < m->end && *m->p == '|') {
		m->p++;
		const struct set other = sequence(m, in);
		unite(&out, &other);
	}
	return out;
}

/* Most patterns are plain names; ends_like compares them from the end, where most names differ. */
static bool is_plain(const char *pattern)
{
	return !strpbrk(pattern, "^$*+?()[]{}|\\");
}

static bool ends_like(const char *pattern, const char *name)
{
	const size_t n = strlen(pattern), len = strlen(name);
	if (n > len || (n < len && name[len - n - 1] != '.'))
		return false;
	for (size_t i = n; i-- > 0;)
		if (pattern[i] != '.' && pattern[i] != name[len - n + i])
			return false;
	return true;
}

static bool run(const char *pattern, const char *name, bool whole, uint64_t *left,
                const char **wrong)
{
	const size_t n = strlen(name);
	struct matcher m = { .name = name, .n = n < MAX_NAME ? n : 0, .p = pattern,
		             .end = pattern + strlen(pattern), .left = left };
	struct set in = { { 0 } };
	put(&in, 0);
	for (size_t i = 0; !whole && i < m.n; i++)
		if (name[i] == '.')
			put(&in, i + 1);
	const struct set out = alternatives(&m, &in);
	if (!m.wrong && m.p < m.end)
		m.wrong = "it has an unmatched )";
	*wrong = m.wrong;
	return !m.wrong && n < MAX_NAME && holds(&out, m.n);
}

bool ws_lora_matches(const char *pattern, const char *name, uint64_t *left, const char **wrong)
{
	*wrong = NULL;
	if (!is_plain(pattern))
		return run(pattern, name, false, left, wrong);
	if (ws_lora_spend(left, 1 + strlen(pattern) / 64))
		return ends_like(pattern, name);
	*wrong = "the adapter has too many patterns and modules";
	return false;
}

bool ws_lora_matches_all(const char *pattern, const char *name, uint64_t *left, const char **wrong)
{
	return run(pattern, name, true, left, wrong);
}
