// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
)

// tableInfo watches iptables-legacy, by the socket options that the command uses too
// (linux/netfilter_ipv4/ip_tables.h).
type tableInfo struct{ sockets map[desired.Family]int }

const (
	optGetInfo    = 64 // IPT_SO_GET_INFO, and IP6T_SO_GET_INFO
	optGetEntries = 65 // IPT_SO_GET_ENTRIES, and IP6T_SO_GET_ENTRIES
	tableNameLen  = 32 // XT_TABLE_MAXNAMELEN
)

// info is struct ipt_getinfo.
type info struct {
	name       [tableNameLen]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	numEntries uint32
	size       uint32
}

// layout is where things are in struct ipt_entry and struct ip6t_entry.
type layout struct{ targetOffset, nextOffset, size int }

var layouts = map[desired.Family]layout{
	desired.IPv4: {88, 90, 112},
	desired.IPv6: {140, 142, 168},
}

// Of struct xt_entry_target, and of those that are standard or an error.
const (
	targetName    = 2
	targetNameLen = 29
	targetData    = 32
)

func openTableInfo(netns int) (*tableInfo, error) {
	t := &tableInfo{map[desired.Family]int{}}
	err := inside(netns, func() error {
		for f, domain := range map[desired.Family]int{desired.IPv4: unix.AF_INET, desired.IPv6: unix.AF_INET6} {
			fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil && f == desired.IPv4 {
				return fmt.Errorf("raw socket to x_tables: %w", err)
			}
			if err == nil {
				t.sockets[f] = fd
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *tableInfo) close() (err error) {
	for _, fd := range t.sockets {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// get is getsockopt with a structure that the kernel reads too.
func (t *tableInfo) get(f desired.Family, option uintptr, data unsafe.Pointer, size int) error {
	fd, ok := t.sockets[f]
	if !ok {
		return unix.EAFNOSUPPORT
	}
	level, n := uintptr(unix.IPPROTO_IP), uint32(size)
	if f == desired.IPv6 {
		level = unix.IPPROTO_IPV6
	}
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), level, option, uintptr(data), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (t *tableInfo) info(f desired.Family, table string) (i info, err error) {
	copy(i.name[:], table)
	err = t.get(f, optGetInfo, unsafe.Pointer(&i), int(unsafe.Sizeof(i)))
	return i, err
}

func (t *tableInfo) stamp() (s stamp, err error) {
	for n, of := range lookedAt {
		if _, ok := t.sockets[of.family]; !ok {
			continue
		}
		i, err := t.info(of.family, of.table)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return s, fmt.Errorf("reading table %s of %s: %w", of.table, of.family, err)
		}
		s.values[n] = tableStamp{rules: i.numEntries, size: i.size, hookEntry: i.hookEntry, underflows: i.underflow}
	}
	return s, nil
}

// look reads a table as a whole. A chain begins with an entry whose target is an error
// with the chain's name, and ends with one that returns.
func (t *tableInfo) look(f desired.Family, table string, _ registry) (*tally, error) {
	const header = 40 // struct ipt_get_entries
	var blob []byte
	for range 100 {
		i, err := t.info(f, table)
		if err != nil {
			return nil, err
		}
		blob = make([]byte, header+int(i.size))
		copy(blob, table)
		binary.NativeEndian.PutUint32(blob[tableNameLen:], i.size)
		err = t.get(f, optGetEntries, unsafe.Pointer(&blob[0]), len(blob))
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EAGAIN) { // another size by now
			return nil, err
		}
	}
	return count(blob[header:], layouts[f]), nil
}

// count counts the rules in a table's entries.
func count(blob []byte, l layout) *tally {
	t := newTally()
	starts := map[uint32]string{} // offset of a chain's first rule -> its name
	var jumps []uint32            // of chains of others
	chain, rules := "", int32(0)
	end := func() {
		if strings.HasPrefix(chain, prefix) {
			t.rules[chain] = rules - 1 // without the one that ends it
		}
		rules = 0
	}
	for at := 0; at+l.size <= len(blob); {
		e := blob[at:]
		next := int(binary.NativeEndian.Uint16(e[l.nextOffset:]))
		target := e[binary.NativeEndian.Uint16(e[l.targetOffset:]):]
		name, _, _ := bytes.Cut(target[targetName:targetName+targetNameLen], []byte{0})
		switch string(name) {
		case "ERROR":
			end()
			label, _, _ := bytes.Cut(target[targetData:targetData+30], []byte{0})
			chain = string(label)
			starts[uint32(at+next)] = chain
		default:
			rules++
			if verdict := int32(binary.NativeEndian.Uint32(target[targetData:])); len(name) == 0 && verdict > 0 && !strings.HasPrefix(chain, prefix) {
				jumps = append(jumps, uint32(verdict))
			}
		}
		if next < l.size {
			break
		}
		at += next
	}
	end()
	for _, to := range jumps {
		if name := starts[to]; strings.HasPrefix(name, prefix) {
			t.entries[name]++
		}
	}
	return t
}
