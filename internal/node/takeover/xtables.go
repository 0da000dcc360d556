// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// xFamily is x_tables of one address family, as include/uapi/linux/netfilter_ipv4/
// ip_tables.h and its like for IPv6 have it, on machines of 64 bits.
type xFamily struct {
	command       string // for people
	names         string // the file in /proc/net that lists the tables
	domain, level int    // of sockets and their options
	offsets       int    // where in struct ipt_entry target_offset is, bytes; next_offset follows
	counters      int    // where the counters are
	entry         int    // its size without matches and target
}

var xFamilies = [...]xFamily{
	{"iptables-legacy", "ip_tables_names", unix.AF_INET, unix.SOL_IP, 88, 96, 112},
	{"ip6tables-legacy", "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 140, 152, 168},
}

// Socket options, the same in both families (IPT_SO_GET_INFO ...).
const (
	xGetInfo     = 64
	xGetEntries  = 65
	xReplace     = 64
	xAddCounters = 65
)

// Sizes and offsets of structures, in bytes.
const (
	xNameLen    = 32 // XT_TABLE_MAXNAMELEN
	xHooks      = 5  // NF_INET_NUMHOOKS
	xInfoLen    = xNameLen + 4 + 4*xHooks + 4*xHooks + 4 + 4
	xEntriesAt  = xNameLen + 8 // in struct ipt_get_entries and struct xt_counters_info
	xReplaceAt  = 96           // of the entries in struct ipt_replace
	xCounterLen = 16           // struct xt_counters
	xTargetLen  = 32           // struct xt_entry_target
	xTargetName = 29           // length of the name in it
	xErrorName  = 30           // length of the name in struct xt_error_target
)

// xTable is a table as the kernel tells it: a blob of entries, one after the other. A
// built-in chain begins where a hook enters; one that somebody made, after an entry that
// has its name (target ERROR). Jumps are offsets in the blob.
type xTable struct {
	family     *xFamily
	name       string
	validHooks uint32
	hookEntry  [xHooks]uint32 // bytes
	underflow  [xHooks]uint32 // the policies' entries
	entries    []xEntry
	blob       []byte
}

// xEntry is a rule, or the head of a chain.
type xEntry struct {
	at, next int    // where it is in the blob, and the one after it
	head     string // the chain that begins here
	jump     int    // where it leads, as an offset; -1 of other targets
	verdict  int    // where in the blob that is said
}

// xSocket is a way to the kernel, in one network namespace.
type xSocket struct {
	*xFamily
	fd int
}

// open makes a socket; any of the family will do. It is of the calling thread's network
// namespace.
func (f *xFamily) open() (*xSocket, error) {
	if strconv.IntSize != 64 {
		return nil, errors.New("not supported on machines of 32 bits")
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return &xSocket{f, fd}, err
}

func (s *xSocket) close() { unix.Close(s.fd) }

// get is getsockopt with a buffer for question and answer.
func (s *xSocket) get(option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// set is setsockopt.
func (s *xSocket) set(option int, buf []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// read reads a table; the error is EAGAIN when it changed meanwhile.
func (s *xSocket) read(name string) (*xTable, error) {
	info := make([]byte, xInfoLen)
	copy(info, name)
	if err := s.get(xGetInfo, info); err != nil {
		return nil, fmt.Errorf("asking for its size: %w", err)
	}
	t := &xTable{family: s.xFamily, name: name, validHooks: native32(info[xNameLen:])}
	for h := range xHooks {
		t.hookEntry[h] = native32(info[xNameLen+4+4*h:])
		t.underflow[h] = native32(info[xNameLen+4+4*xHooks+4*h:])
	}
	size := native32(info[xInfoLen-4:])
	buf := make([]byte, xEntriesAt+int(size))
	copy(buf, name)
	binary.NativeEndian.PutUint32(buf[xNameLen:], size)
	if err := s.get(xGetEntries, buf); err != nil {
		return nil, fmt.Errorf("reading it: %w", err)
	}
	t.blob = buf[xEntriesAt:]
	return t, t.parse()
}

func (t *xTable) parse() error {
	f := t.family
	for at := 0; at < len(t.blob); {
		e := xEntry{at: at, jump: -1}
		rest := t.blob[at:]
		if len(rest) < f.entry {
			return errors.New("cannot be understood: it ends within an entry")
		}
		target := int(binary.NativeEndian.Uint16(rest[f.offsets:]))
		length := int(binary.NativeEndian.Uint16(rest[f.offsets+2:]))
		if target < f.entry || length < target+xTargetLen || length > len(rest) {
			return fmt.Errorf("cannot be understood: an entry with its target at %d and its end at %d", target, length)
		}
		e.next = at + length
		body := rest[target:length]
		data := body[xTargetLen:]
		switch cName(body[2 : 2+xTargetName]) {
		case "ERROR":
			e.head = cName(data[:min(xErrorName, len(data))])
		case "": // the standard target: a verdict, or the offset of a jump
			e.verdict = at + target + xTargetLen
			if v := int32(native32(data)); v >= 0 && int(v) != e.next {
				e.jump = int(v)
			}
		}
		t.entries = append(t.entries, e)
		at = e.next
	}
	return nil
}

// replace makes the kernel use what the plan leaves of the table, which counts as
// before. The error is EAGAIN when the table changed since it was read.
func (s *xSocket) replace(p *xPlan) error {
	t := p.table
	blob, offset, err := p.relocate()
	if err != nil {
		return err
	}
	old := make([]byte, xCounterLen*len(t.entries))
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&old[0])

	b := append(make([]byte, 0, xReplaceAt+len(blob)), make([]byte, xNameLen)...)
	copy(b, t.name)
	word := func(v int) { b = binary.NativeEndian.AppendUint32(b, uint32(v)) }
	word(int(t.validHooks))
	word(len(p.left))
	word(len(blob))
	for _, hooks := range [...][xHooks]uint32{t.hookEntry, t.underflow} {
		for h, at := range hooks {
			if t.validHooks&(1<<h) != 0 {
				at = uint32(offset[int(at)])
			}
			word(int(at))
		}
	}
	word(len(t.entries))
	b = binary.NativeEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&old[0]))))
	b = append(b, blob...)
	if err := s.set(xReplace, b); err != nil {
		return err
	}
	return s.addCounters(p, old)
}

// addCounters gives the entries that are left what they had counted: they have begun
// anew.
func (s *xSocket) addCounters(p *xPlan, old []byte) error {
	b := make([]byte, xEntriesAt, xEntriesAt+xCounterLen*len(p.left))
	copy(b, p.table.name)
	binary.NativeEndian.PutUint32(b[xNameLen:], uint32(len(p.left)))
	for _, i := range p.left {
		b = append(b, old[xCounterLen*i:xCounterLen*(i+1)]...)
	}
	if err := s.set(xAddCounters, b); err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("restoring its counters: %w", err)
	}
	return nil // at worst, somebody has changed the table meanwhile and the counters are lost
}

func native32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// cName is the text of a field that ends with a NUL, or at its end.
func cName(b []byte) string {
	name, _, _ := bytes.Cut(b, []byte{0})
	return string(name)
}
