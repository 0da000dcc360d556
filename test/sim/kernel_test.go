// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// kernel is a virtual nf_tables of one network namespace: tables, chains, rules, sets with elements, and counters, and
// the generation. It takes and gives the messages of the real one. It executes no rule. Of a rule it knows what the
// rule refers to. It has no flowtables, no anonymous sets and no owners of tables, and does not look for overlapping
// intervals.
type kernel struct {
	mu         sync.Mutex
	generation uint32
	handles    uint64
	tables     []*table

	// refuses tells whether an element is refused, by its key and its value; nil for none.
	refuses func(key, value []byte) bool
	// committed is called after each transaction that took effect, without the lock.
	committed func(by *user)

	// trespass is the first message of a user named "slipstream" about a table that is not one of its own.
	trespass string
	events   int // requests, transactions and messages of dumps
	commits  int
}

type table struct {
	nfnl.Table
	handle  uint64
	flags   []byte
	comment []byte
	chains  []*chain
	sets    []*set
	objects []string
	next    uint64 // handle of an object
}

type chain struct {
	name               string
	hook, policy, kind []byte // of a base chain
	handle             uint64
	rules              []*rule
	uses               int
}

type rule struct {
	handle               uint64
	expressions, comment []byte
	jumps                []*chain
	sets                 []*set
}

type set struct {
	name     string
	attrs    [][2]any // the attributes that were sent, in order
	flags    uint32
	size     uint32
	desc     string // what must not differ if the set is added again
	elements map[string]*element
	order    []*element // some are gone
	uses     int
}

type element struct {
	key, value    []byte
	verdict       []byte // the nested attribute
	target        *chain
	comment, expr []byte
	timeout       []byte
	end           bool
	gone          bool
}

func newKernel(generation uint32) *kernel { return &kernel{generation: max(generation, 1)} }

func (k *kernel) do(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

// happened counts an event, unless it is of the auditor.
func (k *kernel) happened(u *user) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if u.name != "auditor" {
		k.events++
	}
}

func (k *kernel) table(f nfnl.Family, name string) *table {
	for _, t := range k.tables {
		if t.Family == f && t.Name == name {
			return t
		}
	}
	return nil
}

func (t *table) chain(name string) *chain {
	for _, c := range t.chains {
		if c.name == name {
			return c
		}
	}
	return nil
}

func (t *table) set(name string) *set {
	for _, s := range t.sets {
		if s.name == name {
			return s
		}
	}
	return nil
}

// transaction is a batch that is being processed.
type transaction struct {
	*kernel
	undo    []func()
	changed bool
	updated map[*table]bool // by messages after which the flags of a table cannot change
	toggled map[*table]bool // its flags have changed
}

// do makes a change that can be undone.
func (t *transaction) do(change, undo func()) {
	change()
	t.undo = append(t.undo, undo)
	t.changed = true
}

func (t *transaction) abort() {
	for _, undo := range slices.Backward(t.undo) {
		undo()
	}
}

// add appends to a list, and remove removes, so that it can be undone.
func add[T any](t *transaction, list *[]T, x T) {
	before := *list
	t.do(func() { *list = append(before, x) }, func() { *list = before })
}

func remove[T comparable](t *transaction, list *[]T, x T) {
	before := *list
	t.do(func() {
		i := slices.Index(before, x)
		*list = slices.Concat(before[:i], before[i+1:])
	}, func() { *list = before })
}

func (t *transaction) use(n *int, by int) {
	t.do(func() { *n += by }, func() { *n -= by })
}

// batch processes the messages of one datagram with a transaction, as nfnetlink_rcv_batch does: after a refusal it goes
// on, so that there is an answer to each message that is wrong, and then aborts.
func (k *kernel) batch(u *user, wire []byte, refuse unix.Errno) (answers [][]byte) {
	k.mu.Lock()
	t := &transaction{kernel: k, updated: map[*table]bool{}, toggled: map[*table]bool{}}
	failed, ended, dry := false, false, true
	answer := func(msg []byte, errno unix.Errno, at []byte) {
		offset := 0
		if at != nil {
			offset = cap(msg) - cap(at) - 4
		}
		answers = append(answers, acknowledgement(msg, errno, offset))
		failed = failed || errno != 0
	}
	begin := wire
	for rest := wire; len(rest) >= unix.NLMSG_HDRLEN && !ended; {
		n := int(binary.NativeEndian.Uint32(rest))
		msg := rest[:n]
		rest = rest[(n+3)&^3:]
		typ, flags := binary.NativeEndian.Uint16(msg[4:]), binary.NativeEndian.Uint16(msg[6:])
		body := msg[unix.NLMSG_HDRLEN+4:]
		switch {
		case typ == unix.NFNL_MSG_BATCH_BEGIN:
			if id := nfnl.Attr(body, unix.NFNL_BATCH_GENID); id != nil && binary.BigEndian.Uint32(id) != k.generation {
				answer(msg, unix.ERESTART, nil)
				ended = true
			}
		case typ == unix.NFNL_MSG_BATCH_END:
			ended, dry = true, false
		default:
			errno, at := t.message(u, typ&0xff, nfnl.Family(msg[unix.NLMSG_HDRLEN]), body)
			if errno != 0 || flags&unix.NLM_F_ACK != 0 {
				answer(msg, errno, at)
			}
		}
	}
	if refuse != 0 {
		answers = nil
		answer(begin, refuse, nil)
	}
	done := !failed && !dry
	switch {
	case !done:
		t.abort()
	case t.changed:
		if k.generation++; k.generation == 0 {
			k.generation = 1
		}
		k.commits++
		k.sweep()
	}
	k.mu.Unlock()
	if done && k.committed != nil {
		k.committed(u)
	}
	return answers
}

// sweep frees elements that transactions have deleted.
func (k *kernel) sweep() {
	for _, t := range k.tables {
		for _, s := range t.sets {
			if len(s.order) > 2*len(s.elements)+8 {
				s.order = slices.DeleteFunc(s.order, func(e *element) bool { return e.gone })
			}
		}
	}
}

// message processes one message of a transaction. With an error, it may return the attribute that is wrong.
func (t *transaction) message(u *user, typ uint16, family nfnl.Family, body []byte) (errno unix.Errno, at []byte) {
	name := nfnl.Text(body, 1)
	if u.name == "slipstream" && !strings.HasPrefix(name, "slipstream") && t.trespass == "" {
		t.trespass = fmt.Sprintf("a message of type %d about table %s %s", typ, family, name)
	}
	on := t.table(family, name)
	if on == nil && typ != unix.NFT_MSG_NEWTABLE {
		return unix.ENOENT, nfnl.Attr(body, 1)
	}
	switch typ {
	case unix.NFT_MSG_NEWTABLE:
		return t.newTable(on, nfnl.Table{Family: family, Name: name}, body), nil
	case unix.NFT_MSG_DELTABLE:
		remove(t, &t.tables, on)
		return 0, nil
	case unix.NFT_MSG_NEWCHAIN:
		return t.newChain(on, body), nil
	case unix.NFT_MSG_DELCHAIN:
		return t.deleteChain(on, nfnl.Text(body, unix.NFTA_CHAIN_NAME)), nil
	case unix.NFT_MSG_NEWRULE:
		return t.newRule(on, body)
	case unix.NFT_MSG_DELRULE:
		return t.deleteRules(on, body), nil
	case unix.NFT_MSG_NEWSET:
		return t.newSet(on, body), nil
	case unix.NFT_MSG_DELSET:
		return t.deleteSet(on, nfnl.Text(body, unix.NFTA_SET_NAME)), nil
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		return t.elements(on, typ, body)
	case unix.NFT_MSG_NEWOBJ:
		if name := nfnl.Text(body, unix.NFTA_OBJ_NAME); !slices.Contains(on.objects, name) {
			add(t, &on.objects, name)
		}
		return 0, nil
	}
	return unix.EOPNOTSUPP, nil
}

func (t *transaction) newTable(on *table, named nfnl.Table, body []byte) unix.Errno {
	flags := bytes.Clone(nfnl.Attr(body, unix.NFTA_TABLE_FLAGS))
	if on == nil {
		t.handles++
		add(t, &t.tables, &table{Table: named, handle: t.handles, flags: flags, comment: bytes.Clone(nfnl.Attr(body, 6))})
		return 0
	}
	if before := on.flags; flags != nil && !bytes.Equal(before, flags) {
		if t.updated[on] {
			return unix.EINVAL
		}
		t.updated[on], t.toggled[on] = true, true
		t.do(func() { on.flags = flags }, func() { on.flags = before })
	}
	return 0
}

func (t *transaction) newChain(on *table, body []byte) unix.Errno {
	name, hook := nfnl.Text(body, unix.NFTA_CHAIN_NAME), bytes.Clone(nfnl.Attr(body, unix.NFTA_CHAIN_HOOK))
	if c := on.chain(name); c != nil {
		if hook != nil && !bytes.Equal(hook, c.hook) {
			return unix.EEXIST
		}
		t.changed, t.updated[on] = true, true // it counts as an update
		return 0
	}
	if hook != nil && t.toggled[on] {
		return unix.EINVAL
	}
	on.next++
	c := &chain{name: name, hook: hook, handle: on.next}
	if hook != nil {
		c.policy, c.kind = bytes.Clone(nfnl.Attr(body, unix.NFTA_CHAIN_POLICY)), bytes.Clone(nfnl.Attr(body, unix.NFTA_CHAIN_TYPE))
	}
	add(t, &on.chains, c)
	return 0
}

func (t *transaction) deleteChain(on *table, name string) unix.Errno {
	c := on.chain(name)
	if c == nil {
		return unix.ENOENT
	}
	for _, r := range c.rules {
		t.deleteRule(c, r)
	}
	if c.uses > 0 {
		return unix.EBUSY
	}
	t.updated[on] = t.updated[on] || c.hook != nil
	remove(t, &on.chains, c)
	return 0
}

func (t *transaction) newRule(on *table, body []byte) (unix.Errno, []byte) {
	c := on.chain(nfnl.Text(body, unix.NFTA_RULE_CHAIN))
	if c == nil {
		return unix.ENOENT, nil
	}
	on.next++
	r := &rule{handle: on.next, comment: bytes.Clone(nfnl.Attr(body, unix.NFTA_RULE_USERDATA))}
	for _, e := range nfnl.Attributes(nfnl.Attr(body, unix.NFTA_RULE_EXPRESSIONS)) {
		if errno := r.refer(on, e); errno != 0 {
			return errno, e
		}
	}
	r.expressions = bytes.Clone(nfnl.Attr(body, unix.NFTA_RULE_EXPRESSIONS))
	add(t, &c.rules, r)
	t.use(&c.uses, 1)
	r.uses(t, 1)
	return 0, nil
}

// refer notes what an expression refers to, which has to exist.
func (r *rule) refer(on *table, e []byte) unix.Errno {
	data := nfnl.Attr(e, unix.NFTA_EXPR_DATA)
	used := ""
	switch nfnl.Text(e, unix.NFTA_EXPR_NAME) {
	case "immediate":
		verdict := nfnl.Attr(nfnl.Attr(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
		if target := nfnl.Text(verdict, unix.NFTA_VERDICT_CHAIN); target != "" {
			c := on.chain(target)
			if c == nil {
				return unix.ENOENT
			}
			r.jumps = append(r.jumps, c)
		}
	case "lookup":
		used = nfnl.Text(data, unix.NFTA_LOOKUP_SET)
	case "dynset":
		used = nfnl.Text(data, unix.NFTA_DYNSET_SET_NAME)
	case "objref":
		if name := nfnl.Text(data, unix.NFTA_OBJREF_IMM_NAME); !slices.Contains(on.objects, name) {
			return unix.ENOENT
		}
	}
	if used != "" {
		s := on.set(used)
		if s == nil {
			return unix.ENOENT
		}
		if nfnl.Text(e, unix.NFTA_EXPR_NAME) == "lookup" && s.flags&unix.NFT_SET_MAP == 0 && nfnl.Attr(data, unix.NFTA_LOOKUP_DREG) != nil {
			return unix.EINVAL
		}
		r.sets = append(r.sets, s)
	}
	return 0
}

func (r *rule) uses(t *transaction, by int) {
	for _, c := range r.jumps {
		t.use(&c.uses, by)
	}
	for _, s := range r.sets {
		t.use(&s.uses, by)
	}
}

func (t *transaction) deleteRule(c *chain, r *rule) {
	remove(t, &c.rules, r)
	t.use(&c.uses, -1)
	r.uses(t, -1)
}

func (t *transaction) deleteRules(on *table, body []byte) unix.Errno {
	chains := on.chains
	if name := nfnl.Text(body, unix.NFTA_RULE_CHAIN); name != "" {
		c := on.chain(name)
		if c == nil {
			return unix.ENOENT
		}
		chains = []*chain{c}
	}
	handle := nfnl.Attr(body, unix.NFTA_RULE_HANDLE)
	for _, c := range chains {
		for _, r := range c.rules {
			if handle == nil {
				t.deleteRule(c, r)
			} else if r.handle == binary.BigEndian.Uint64(handle) {
				t.deleteRule(c, r)
				return 0
			}
		}
	}
	if handle != nil {
		return unix.ENOENT
	}
	return 0
}

// kept are the attributes of a set that the kernel returns.
var kept = []uint16{
	unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE,
	unix.NFTA_SET_DATA_LEN, unix.NFTA_SET_DESC, unix.NFTA_SET_USERDATA,
}

func (t *transaction) newSet(on *table, body []byte) unix.Errno {
	s := &set{name: nfnl.Text(body, unix.NFTA_SET_NAME), flags: nfnl.Num(body, unix.NFTA_SET_FLAGS), elements: map[string]*element{}}
	s.size = nfnl.Num(nfnl.Attr(body, unix.NFTA_SET_DESC), unix.NFTA_SET_DESC_SIZE)
	for _, typ := range kept {
		if v := nfnl.Attr(body, typ); v != nil {
			s.attrs = append(s.attrs, [2]any{typ, bytes.Clone(v)})
			if typ != unix.NFTA_SET_USERDATA && typ != unix.NFTA_SET_DESC {
				s.desc += fmt.Sprintf("%d:%x ", typ, v)
			}
		}
	}
	if nfnl.Num(body, unix.NFTA_SET_DATA_TYPE) == unix.NFT_DATA_VERDICT {
		const size = 16 // struct nft_verdict
		s.attrs = append(s.attrs, [2]any{uint16(unix.NFTA_SET_DATA_LEN), binary.BigEndian.AppendUint32(nil, size)})
	}
	if was := on.set(s.name); was != nil {
		if was.desc != s.desc {
			return unix.EEXIST
		}
		t.changed = true // it counts as an update
		return 0
	}
	add(t, &on.sets, s)
	return 0
}

func (t *transaction) deleteSet(on *table, name string) unix.Errno {
	s := on.set(name)
	switch {
	case s == nil:
		return unix.ENOENT
	case s.uses > 0:
		return unix.EBUSY
	}
	for _, e := range s.elements {
		t.deleteElement(s, e)
	}
	remove(t, &on.sets, s)
	return 0
}

func mapKey(key []byte, end bool) string {
	if end {
		return string(key) + "\x01"
	}
	return string(key) + "\x00"
}

func (t *transaction) deleteElement(s *set, e *element) {
	t.do(func() { delete(s.elements, mapKey(e.key, e.end)); e.gone = true },
		func() { s.elements[mapKey(e.key, e.end)] = e; e.gone = false })
	if e.target != nil {
		t.use(&e.target.uses, -1)
	}
}

func (t *transaction) elements(on *table, typ uint16, body []byte) (unix.Errno, []byte) {
	s := on.set(nfnl.Text(body, unix.NFTA_SET_ELEM_LIST_SET))
	if s == nil {
		return unix.ENOENT, nfnl.Attr(body, unix.NFTA_SET_ELEM_LIST_SET)
	}
	list := nfnl.Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	if list == nil && typ == unix.NFT_MSG_DELSETELEM { // flush
		for _, e := range s.order {
			if !e.gone {
				t.deleteElement(s, e)
			}
		}
		return 0, nil
	}
	for _, attr := range nfnl.Attributes(list) {
		if errno := t.element(on, s, typ, attr); errno != 0 {
			return errno, attr
		}
	}
	return 0, nil
}

func (t *transaction) element(on *table, s *set, typ uint16, attr []byte) unix.Errno {
	e := &element{
		key:     bytes.Clone(nfnl.Attr(nfnl.Attr(attr, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)),
		value:   bytes.Clone(nfnl.Attr(nfnl.Attr(attr, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VALUE)),
		verdict: bytes.Clone(nfnl.Attr(nfnl.Attr(attr, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VERDICT)),
		comment: bytes.Clone(nfnl.Attr(attr, unix.NFTA_SET_ELEM_USERDATA)),
		expr:    bytes.Clone(nfnl.Attr(attr, unix.NFTA_SET_ELEM_EXPR)),
		timeout: bytes.Clone(nfnl.Attr(attr, unix.NFTA_SET_ELEM_TIMEOUT)),
		end:     nfnl.Num(attr, unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0,
	}
	there := s.elements[mapKey(e.key, e.end)]
	if typ == unix.NFT_MSG_DELSETELEM {
		if there == nil {
			return unix.ENOENT
		}
		t.deleteElement(s, there)
		return 0
	}
	if hasData := e.value != nil || e.verdict != nil; hasData != (s.flags&unix.NFT_SET_MAP != 0) && !e.end {
		return unix.EINVAL
	}
	if target := nfnl.Text(e.verdict, unix.NFTA_VERDICT_CHAIN); target != "" {
		if e.target = on.chain(target); e.target == nil {
			return unix.ENOENT
		}
	}
	switch {
	case t.refuses != nil && t.refuses(e.key, e.value):
		return unix.EINVAL
	case there != nil && (!bytes.Equal(there.value, e.value) || !bytes.Equal(there.verdict, e.verdict)):
		return unix.EEXIST
	case there != nil:
		return 0
	case s.size > 0 && len(s.elements) >= int(s.size):
		return unix.ENFILE
	}
	add(t, &s.order, e)
	t.do(func() { s.elements[mapKey(e.key, e.end)] = e }, func() { delete(s.elements, mapKey(e.key, e.end)); e.gone = true })
	if e.target != nil {
		t.use(&e.target.uses, 1)
	}
	return 0
}

// dump is a request for a list that is being answered.
type dump struct {
	seq        uint32
	generation uint32                         // when it began
	items      func(skip int) iter.Seq[entry] // as they are now
	sent       int                            // which is all that the kernel remembers
	elements   bool
}

// entry writes one object of a dump.
type entry func(*wire)

// datagramSize is about how many bytes one message of a dump has. The real kernel's are larger, so that there are fewer.
const datagramSize = 8 << 10

const (
	subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
)

// get answers a request that reads: at once, or by a dump.
func (k *kernel) get(msg []byte) (answers [][]byte, d *dump) {
	k.mu.Lock()
	defer k.mu.Unlock()
	typ, flags, seq := binary.NativeEndian.Uint16(msg[4:])&0xff, binary.NativeEndian.Uint16(msg[6:]), binary.NativeEndian.Uint32(msg[8:])
	family, body := nfnl.Family(msg[unix.NLMSG_HDRLEN]), msg[unix.NLMSG_HDRLEN+4:]
	name := nfnl.Text(body, 1)
	refuse := func(errno unix.Errno) ([][]byte, *dump) { return [][]byte{acknowledgement(msg, errno, 0)}, nil }
	if flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
		if (typ == unix.NFT_MSG_GETSETELEM || typ == unix.NFT_MSG_GETSET) && (k.table(family, name) == nil ||
			typ == unix.NFT_MSG_GETSETELEM && k.table(family, name).set(nfnl.Text(body, 2)) == nil) {
			return refuse(unix.ENOENT)
		}
		object := nfnl.Text(body, 2)
		d := &dump{seq: seq, generation: k.generation, elements: typ == unix.NFT_MSG_GETSETELEM}
		d.items = func(skip int) iter.Seq[entry] { return k.list(skip, typ, family, name, object) }
		return nil, d
	}
	var w wire
	reply := func(typ uint16, write func(*wire)) {
		w.message(subsystem|typ, 0, seq, family, k.generation, write)
	}
	on := k.table(family, name)
	switch typ {
	case unix.NFT_MSG_GETGEN:
		reply(unix.NFT_MSG_NEWGEN, func(w *wire) { w.be32(unix.NFTA_GEN_ID, k.generation) })
	case unix.NFT_MSG_GETTABLE:
		if on == nil {
			return refuse(unix.ENOENT)
		}
		reply(unix.NFT_MSG_NEWTABLE, on.write)
	case unix.NFT_MSG_GETOBJ:
		if on == nil || !slices.Contains(on.objects, nfnl.Text(body, unix.NFTA_OBJ_NAME)) {
			return refuse(unix.ENOENT)
		}
		reply(unix.NFT_MSG_NEWOBJ, func(w *wire) { w.text(unix.NFTA_OBJ_NAME, nfnl.Text(body, unix.NFTA_OBJ_NAME)) })
	case unix.NFT_MSG_GETSETELEM:
		if on == nil || on.set(nfnl.Text(body, 2)) == nil {
			return refuse(unix.ENOENT)
		}
		s := on.set(nfnl.Text(body, 2))
		for _, wanted := range nfnl.Attributes(nfnl.Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			e := s.find(nfnl.Attr(nfnl.Attr(wanted, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))
			if e == nil {
				return refuse(unix.ENOENT)
			}
			reply(unix.NFT_MSG_NEWSETELEM, func(w *wire) {
				w.nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, e.write)
			})
		}
	default:
		return refuse(unix.EOPNOTSUPP)
	}
	return [][]byte{w, acknowledgement(msg, 0, 0)}, nil
}

// find returns the element with a key, and in a set of intervals the one that contains it.
func (s *set) find(key []byte) *element {
	if e := s.elements[mapKey(key, false)]; e != nil || s.flags&unix.NFT_SET_INTERVAL == 0 {
		return e
	}
	var last *element
	for _, e := range s.order {
		if e.gone || bytes.Compare(e.key, key) > 0 {
			continue
		}
		if last == nil || bytes.Compare(e.key, last.key) > 0 || bytes.Equal(e.key, last.key) && !e.end {
			last = e
		}
	}
	if last != nil && last.end {
		return nil
	}
	return last
}

// more returns the next message of a dump, and whether others follow.
func (k *kernel) more(d *dump, interrupted bool) (datagram []byte, more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	flags := uint16(unix.NLM_F_MULTI)
	if interrupted || d.generation != k.generation && !d.elements {
		flags |= unix.NLM_F_DUMP_INTR
	}
	w := make(wire, 0, datagramSize+4<<10)
	for item := range d.items(d.sent) {
		if len(w) > datagramSize {
			return w, true
		}
		w.message(subsystem|unix.NFT_MSG_NEWRULE, flags, d.seq, 0, k.generation, item)
		d.sent++
	}
	start := len(w)
	w.message(unix.NLMSG_DONE, flags, d.seq, 0, 0, func(*wire) {})
	binary.NativeEndian.PutUint32(w[start+16:], 0) // no error
	return w, false
}

// list yields the objects that a dump is about, except for the first ones.
func (k *kernel) list(skip int, typ uint16, family nfnl.Family, name, object string) iter.Seq[entry] {
	skips := func() bool {
		skip--
		return skip >= 0
	}
	return func(yield func(entry) bool) {
		for _, t := range k.tables {
			if family != unix.NFPROTO_UNSPEC && t.Family != family || typ != unix.NFT_MSG_GETCHAIN && t.Name != name {
				continue
			}
			switch typ {
			case unix.NFT_MSG_GETCHAIN:
				for _, c := range t.chains {
					if !skips() && !yield(func(w *wire) { c.write(w, t) }) {
						return
					}
				}
			case unix.NFT_MSG_GETRULE:
				for _, c := range t.chains {
					for _, r := range c.rules {
						if (object == "" || c.name == object) && !skips() && !yield(func(w *wire) { r.write(w, t, c) }) {
							return
						}
					}
				}
			case unix.NFT_MSG_GETSET:
				for _, s := range t.sets {
					if !skips() && !yield(func(w *wire) { s.write(w, t) }) {
						return
					}
				}
			case unix.NFT_MSG_GETSETELEM:
				s := t.set(object)
				if s == nil {
					return
				}
				for _, e := range s.order {
					if !e.gone && !skips() && !yield(func(w *wire) { w.nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, e.write) }) {
						return
					}
				}
			}
		}
	}
}

func (t *table) write(w *wire) {
	w.text(unix.NFTA_TABLE_NAME, t.Name)
	w.present(unix.NFTA_TABLE_FLAGS, t.flags)
	w.be32(unix.NFTA_TABLE_USE, uint32(len(t.chains)+len(t.sets)+len(t.objects)))
	w.be64(4, t.handle)
	w.present(6, t.comment)
}

func (c *chain) write(w *wire, t *table) {
	w.text(unix.NFTA_CHAIN_TABLE, t.Name)
	w.be64(unix.NFTA_CHAIN_HANDLE, c.handle)
	w.text(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != nil {
		w.bytes(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, c.hook)
		w.present(unix.NFTA_CHAIN_POLICY, c.policy)
		w.present(unix.NFTA_CHAIN_TYPE, c.kind)
	}
	w.be32(unix.NFTA_CHAIN_USE, uint32(c.uses))
}

func (r *rule) write(w *wire, t *table, c *chain) {
	w.text(unix.NFTA_RULE_TABLE, t.Name)
	w.text(unix.NFTA_RULE_CHAIN, c.name)
	w.be64(unix.NFTA_RULE_HANDLE, r.handle)
	w.bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r.expressions)
	w.present(unix.NFTA_RULE_USERDATA, r.comment)
}

func (s *set) write(w *wire, t *table) {
	w.text(unix.NFTA_SET_TABLE, t.Name)
	w.text(unix.NFTA_SET_NAME, s.name)
	for _, a := range s.attrs {
		w.bytes(a[0].(uint16), a[1].([]byte))
	}
}

// write writes the element as an attribute of a list.
func (e *element) write(w *wire) {
	w.nested(unix.NFTA_LIST_ELEM, func(w *wire) {
		w.nested(unix.NFTA_SET_ELEM_KEY, func(w *wire) { w.bytes(unix.NFTA_DATA_VALUE, e.key) })
		if e.value != nil {
			w.nested(unix.NFTA_SET_ELEM_DATA, func(w *wire) { w.bytes(unix.NFTA_DATA_VALUE, e.value) })
		}
		if e.verdict != nil {
			w.nested(unix.NFTA_SET_ELEM_DATA, func(w *wire) { w.bytes(unix.NFTA_DATA_VERDICT|unix.NLA_F_NESTED, e.verdict) })
		}
		w.present(unix.NFTA_SET_ELEM_EXPR, e.expr)
		w.present(unix.NFTA_SET_ELEM_TIMEOUT, e.timeout)
		if e.end {
			w.be32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		}
		w.present(unix.NFTA_SET_ELEM_USERDATA, e.comment)
	})
}

// enters reports whether packets enter Slipstream's tables before they are translated. What follows sees only packets
// that were, and a cold start writes its rules before the elements.
func (k *kernel) enters() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.tables {
		for _, c := range t.chains {
			if t.Name != "slipstream" || c.hook == nil || len(c.rules) == 0 {
				continue
			}
			switch binary.BigEndian.Uint32(nfnl.Attr(c.hook, unix.NFTA_HOOK_HOOKNUM)) {
			case unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_OUT:
				return true
			}
		}
	}
	return false
}

// sizes returns the numbers of elements of sets that no rule fills.
func (k *kernel) sizes() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[string]int{}
	for _, t := range k.tables {
		for _, s := range t.sets {
			if t.Name == "slipstream" && s.flags&unix.NFT_SET_EVAL == 0 {
				all[fmt.Sprintf("%s %s", t.Family, s.name)] = len(s.elements)
			}
		}
	}
	return all
}

// damage writes a transaction of another program that changes Slipstream's tables. What only a comparison of everything
// finds, it does only if such comparisons are made: elements that are too many.
func (k *kernel) damage(b *nfnl.Batch, arg uint64, verified bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	own := slices.DeleteFunc(slices.Clone(k.tables), func(t *table) bool { return t.Name != "slipstream" })
	if len(own) == 0 {
		b.AddTable(nfnl.Table{Family: nfnl.IPv4, Name: "slipstream"}, "")
		return
	}
	next := func(n int) int {
		if n == 0 {
			return 0
		}
		m := arg % uint64(n)
		arg = arg/uint64(n) + 1
		return int(m)
	}
	what := []int{0, 1, 2, 2, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8}[next(14)] // often single elements
	t := own[next(len(own))]
	ofServices := next(4) > 0 // else elements that lead to chains, too, of which there are more
	sets := slices.DeleteFunc(slices.Clone(t.sets), func(s *set) bool {
		return s.flags&unix.NFT_SET_EVAL != 0 || len(s.elements) == 0 || ofServices && slices.ContainsFunc(s.order, func(e *element) bool { return !e.gone && e.verdict != nil })
	})
	if what < 4 && len(sets) == 0 || len(t.chains) == 0 {
		b.DeleteTable(t.Table)
		return
	}
	var s *set
	var e *element
	if len(sets) > 0 {
		s = sets[next(len(sets))]
		all := slices.DeleteFunc(slices.Clone(s.order), func(e *element) bool { return e.gone || e.end })
		e = all[next(len(all))]
	}
	switch as := (&nfnl.Set{}); what {
	case 0:
		b.DeleteTable(t.Table)
	case 1:
		as.Name = s.name
		b.FlushSet(t.Table, as)
	case 2: // an element is missing
		if as.Name = s.name; s.flags&unix.NFT_SET_INTERVAL != 0 {
			b.FlushSet(t.Table, as)
			break
		}
		b.DeleteElement(t.Table, as, e.key)
	case 3: // an element has another value
		as.Name = s.name
		if len(e.value) > 0 {
			other := bytes.Clone(e.value)
			other[len(other)-1] ^= 1 << next(8)
			b.DeleteElement(t.Table, as, e.key)
			b.AddElement(t.Table, as, e.key, other, "")
		} else {
			b.FlushSet(t.Table, as)
		}
	case 4:
		b.FlushTable(t.Table)
	case 5:
		c := t.chains[next(len(t.chains))]
		if len(c.rules) == 0 {
			b.AddChain(t.Table, nfnl.Chain{Name: "foreign"})
			break
		}
		b.DeleteRule(t.Table, c.name, c.rules[next(len(c.rules))].handle)
	case 6:
		b.AddChain(t.Table, nfnl.Chain{Name: "foreign"})
		b.AddRule(t.Table, t.chains[next(len(t.chains))].name, "foreign")
	case 7:
		b.AddTable(t.Table, "")
		b.AddSet(t.Table, &nfnl.Set{Name: "foreign", KeyType: nfnl.TypeMark, KeyLen: 4})
		b.AddChain(t.Table, nfnl.Chain{Name: "foreign"})
	case 8:
		if !verified || s == nil || s.flags&(unix.NFT_SET_INTERVAL|unix.NFT_SET_MAP) != 0 {
			b.DeleteTable(t.Table)
			break
		}
		key := bytes.Clone(e.key)
		key[len(key)-1] ^= 1 << next(8)
		as.Name = s.name
		b.AddElement(t.Table, as, key, nil, "")
	}
}
