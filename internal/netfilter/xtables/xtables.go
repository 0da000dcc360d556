// SPDX-License-Identifier: Apache-2.0

// Package xtables reads and replaces the tables of iptables-legacy, which the kernel calls
// x_tables, by the socket options that the command itself uses
// (include/uapi/linux/netfilter/x_tables.h, netfilter_ipv4/ip_tables.h and its like for
// IPv6). Any change replaces the whole table, in one step. It needs CAP_NET_ADMIN.
package xtables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/sys/unix"
)

// Family is x_tables of one address family.
type Family struct {
	command       string // the name of iptables' command
	names         string // the file in /proc/net that lists the tables
	domain, level int    // of sockets and their options

	// Of struct ipt_entry or struct ip6t_entry, in bytes.
	targetOffset int // where target_offset is; next_offset follows it
	entryLen     int // size without matches and target
}

// The families that iptables has.
var (
	IPv4 = &Family{"iptables-legacy", "ip_tables_names", unix.AF_INET, unix.SOL_IP, 88, 112}
	IPv6 = &Family{"ip6tables-legacy", "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 140, 168}
)

// String is the name of the command for the family.
func (f *Family) String() string { return f.command }

// Tables are the names of the tables that exist in the calling thread's network namespace.
// Reading a table that does not exist would create it.
func (f *Family) Tables() ([]string, error) {
	text, err := os.ReadFile("/proc/thread-self/net/" + f.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has no x_tables
	}
	return strings.Fields(string(text)), err
}

// Socket options, the same in both families (IPT_SO_GET_INFO ...).
const (
	optGetInfo     = 64
	optGetEntries  = 65
	optReplace     = 64
	optAddCounters = 65
)

// Hooks is the number of hooks (NF_INET_NUMHOOKS).
const Hooks = 5

// Sizes and offsets of structures, in bytes.
const (
	nameLen    = 32 // XT_TABLE_MAXNAMELEN
	entriesAt  = 40 // in struct ipt_get_entries and struct xt_counters_info
	replaceAt  = 96 // of the entries in struct ipt_replace
	counterLen = 16 // struct xt_counters
)

// Info describes a table without its entries (struct ipt_getinfo). It differs after most
// changes of a table.
type Info struct {
	ValidHooks uint32        // one bit for each hook that the table has a chain for
	HookEntry  [Hooks]uint32 // the offset of the first entry of each hook's chain
	Underflow  [Hooks]uint32 // the offset of the entry with the chain's policy
	Entries    uint32        // rules, two for each chain that is not a hook's, one for each policy, one at the end
	Size       uint32        // bytes
}

// Conn is a connection to x_tables of one family, in one network namespace.
type Conn struct {
	family *Family
	fd     int
}

// Dial connects in the calling thread's network namespace.
func Dial(f *Family) (*Conn, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // any socket of the family will do
	if err != nil {
		return nil, fmt.Errorf("socket for x_tables: %w", err)
	}
	return &Conn{f, fd}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// get is getsockopt with a buffer for question and answer.
func (c *Conn) get(option int, buf unsafe.Pointer, size int) error {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(c.fd), uintptr(c.family.level), uintptr(option),
		uintptr(buf), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (c *Conn) set(option int, buf []byte) error {
	return sock.Commit(func() error {
		return unix.SetsockoptString(c.fd, c.family.level, option, unsafe.String(&buf[0], len(buf)))
	})
}

// Info reads a table's description. It creates the table if it does not exist; a kernel
// without it gives ENOENT.
func (c *Conn) Info(table string) (Info, error) {
	var buf struct {
		name [nameLen]byte
		Info
	}
	copy(buf.name[:], table)
	err := c.get(optGetInfo, unsafe.Pointer(&buf), int(unsafe.Sizeof(buf)))
	return buf.Info, err
}

// Read reads a table. It creates the table if it does not exist.
func (c *Conn) Read(table string) (*Table, error) {
	t := &Table{Name: table, family: c.family}
	for try := 1; ; try++ {
		var err error
		if t.Info, err = c.Info(table); err != nil {
			return nil, fmt.Errorf("reading size: %w", err)
		}
		buf := make([]byte, entriesAt+int(t.Size))
		copy(buf, table)
		binary.NativeEndian.PutUint32(buf[nameLen:], t.Size)
		err = c.get(optGetEntries, unsafe.Pointer(&buf[0]), len(buf))
		const readTries = 100 // of a table that changes
		if errors.Is(err, unix.EAGAIN) && try < readTries {
			continue // its size has changed
		}
		if err != nil {
			return nil, fmt.Errorf("reading entries: %w", err)
		}
		t.blob = buf[entriesAt:]
		return t, t.parse()
	}
}

// Replace makes the kernel use a table without some of its entries, by index; jumps to
// these go to the next entry that stays. Packets are counted on. Hold the lock ([Lock])
// since before the table was read. The error is EAGAIN when the number of entries has
// changed since.
func (c *Conn) Replace(t *Table, remove func(entry int) bool) error {
	if strconv.IntSize != 64 {
		return errors.New("replacing tables of x_tables is not supported on machines of 32 bits")
	}
	left, blob, offset, err := t.without(remove)
	if err != nil {
		return err
	}
	counters := make([]byte, counterLen*len(t.entries)) // the kernel writes the old ones there
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&counters[0])

	b := append(make([]byte, 0, replaceAt+len(blob)), make([]byte, nameLen)...)
	copy(b, t.Name)
	word := func(v uint32) { b = binary.NativeEndian.AppendUint32(b, v) }
	word(t.ValidHooks)
	word(uint32(len(left)))
	word(uint32(len(blob)))
	for _, hooks := range [...][Hooks]uint32{t.HookEntry, t.Underflow} {
		for h, at := range hooks {
			if t.ValidHooks&(1<<h) != 0 {
				at = offset[at]
			}
			word(at)
		}
	}
	word(uint32(len(t.entries)))
	b = binary.NativeEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&counters[0]))))
	if err := c.set(optReplace, append(b, blob...)); err != nil {
		return err
	}
	return c.addCounters(t.Name, left, counters)
}

// addCounters adds the former counters to the entries that are left. They begin with zero.
func (c *Conn) addCounters(table string, left []int, counters []byte) error {
	b := make([]byte, entriesAt, entriesAt+counterLen*len(left))
	copy(b, table)
	binary.NativeEndian.PutUint32(b[nameLen:], uint32(len(left)))
	for _, i := range left {
		b = append(b, counters[counterLen*i:counterLen*(i+1)]...)
	}
	err := c.set(optAddCounters, b)
	if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("restoring counters: %w", err)
	}
	return nil // if the table has changed, the counters are lost
}

// LockFile is locked by the iptables-legacy commands while they change a table.
const LockFile = "/run/xtables.lock"

// LockTimeout is how long [Lock] waits at most, as iptables with "-w 60".
const LockTimeout = 60 * time.Second

// Lock takes the lock of iptables-legacy, and waits for it until the context ends or
// LockTimeout has passed. Where the file cannot be created, as in a container with a
// read-only file system, it does without: the kernel notices nearly all concurrent changes.
func Lock(ctx context.Context) (unlock func(), err error) {
	file, err := os.OpenFile(LockFile, os.O_CREATE|os.O_RDONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, LockTimeout)
	defer cancel()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			file.Close()
			return nil, fmt.Errorf("locking %s: %w", LockFile, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("another process holds %s: %w", LockFile, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
