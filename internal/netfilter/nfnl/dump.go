// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/sys/unix"
)

// ErrInterrupted says that the ruleset changed while it was being read, so that the result
// may be inconsistent. Read again.
var ErrInterrupted = errors.New("the ruleset changed while it was read")

// Undisturbed calls read until the ruleset does not change meanwhile. After a hundred tries
// it returns [ErrInterrupted].
func Undisturbed(read func() error) (err error) {
	const undisturbedTries = 100 // readings at most
	for range undisturbedTries {
		if err = read(); !errors.Is(err, ErrInterrupted) {
			break
		}
	}
	return err
}

// list reads the objects of one kind in a table while the ruleset does not change: those that a name selects, or all.
func list[T any](c *Conn, msg uint16, t Table, name string, parse func(body []byte) T) (all []T, err error) {
	a := c.about(t, name) // a filter in the kernel, except for chains
	err = Undisturbed(func() error {
		all = nil
		return c.request(msg, unix.NLM_F_DUMP, uint8(t.Family), a, func(body []byte) {
			if cString(Attr(body, tableName)) == t.Name {
				all = append(all, parse(body))
			}
		})
	})
	return all, err
}

// about returns the attributes that name a table, and a set, a chain with rules or a counter.
func (c *Conn) about(t Table, object string) (a attrs) {
	a.string(tableName, t.Name)
	if object != "" {
		a.string(objectName(0), object)
	}
	return a
}

// TableInfo is a table as read.
type TableInfo struct {
	Handle  uint64 // unique to this incarnation of the table
	Dormant bool   // its chains are not attached (NFT_TABLE_F_DORMANT)
	Comment string
}

// Table reads a table. If it does not exist, the error wraps ENOENT.
func (c *Conn) Table(t Table) (info TableInfo, err error) {
	err = c.request(unix.NFT_MSG_GETTABLE, 0, uint8(t.Family), c.about(t, ""), func(body []byte) {
		info.Handle = be64(Attr(body, nftaTableHandle))
		info.Dormant = be32(Attr(body, unix.NFTA_TABLE_FLAGS))&tableDormant != 0
		info.Comment = parseComment(Attr(body, nftaTableUserdata))
	})
	return info, err
}

// ChainInfo is a chain as read.
type ChainInfo struct {
	Name string

	// Base is the hook, type and policy of a base chain in the kernel's encoding; empty for other chains.
	Base []byte

	// Uses is the number of the chain's rules plus the number of rules and elements of maps that refer to it.
	Uses uint32
}

// Chains returns the chains of a table.
func (c *Conn) Chains(t Table) ([]ChainInfo, error) {
	return list(c, unix.NFT_MSG_GETCHAIN, t, "", chainInfo)
}

func chainInfo(body []byte) ChainInfo {
	info := ChainInfo{Name: cString(Attr(body, unix.NFTA_CHAIN_NAME)), Uses: be32(Attr(body, unix.NFTA_CHAIN_USE))}
	if hook := Attr(body, unix.NFTA_CHAIN_HOOK); hook != nil {
		info.Base = slices.Concat(hook, Attr(body, unix.NFTA_CHAIN_TYPE), Attr(body, unix.NFTA_CHAIN_POLICY))
	}
	return info
}

// Sets returns the sets and maps of a table.
func (c *Conn) Sets(t Table) ([]Set, error) {
	return list(c, unix.NFT_MSG_GETSET, t, "", setInfo)
}

func setInfo(body []byte) Set {
	return Set{
		Name:     cString(Attr(body, unix.NFTA_SET_NAME)),
		KeyType:  DataType(be32(Attr(body, unix.NFTA_SET_KEY_TYPE))),
		KeyLen:   be32(Attr(body, unix.NFTA_SET_KEY_LEN)),
		DataType: DataType(be32(Attr(body, unix.NFTA_SET_DATA_TYPE))),
		DataLen:  be32(Attr(body, unix.NFTA_SET_DATA_LEN)),
		Flags:    be32(Attr(body, unix.NFTA_SET_FLAGS)) &^ unix.NFT_SET_MAP,
	}
}

// Counter reads a named counter. If it does not exist, the error wraps ENOENT.
func (c *Conn) Counter(t Table, name string) (packets, bytes uint64, err error) {
	a := c.about(t, name)
	a.be32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	err = c.request(unix.NFT_MSG_GETOBJ, 0, uint8(t.Family), a, func(body []byte) {
		data := Attr(body, unix.NFTA_OBJ_DATA)
		packets, bytes = be64(Attr(data, nftaCounterPackets)), be64(Attr(data, nftaCounterBytes))
	})
	return packets, bytes, err
}

// Attributes of the data of a counter (enum nft_counter_attributes).
const (
	nftaCounterBytes   = 1
	nftaCounterPackets = 2
)

// Element is an element as read; its slices are valid only during the call that they are passed to.
type Element struct {
	Key     []byte
	Value   []byte  // of a map of values
	Verdict Verdict // of a verdict map
	Chain   string  // its target
	Comment []byte
	End     bool          // first key after an interval
	Packets uint64        // of a counter
	Expires time.Duration // from now; 0 without a timeout
	Acts    bool          // it has an expression, such as a counter or a limit, which a look-up executes
}

// Elements calls visit with every element of a set or map. If the ruleset changed meanwhile, it returns
// [ErrInterrupted]: between two messages, the kernel only remembers the number of elements so far, so it skips elements
// if others before them were deleted. This can also happen without an error within milliseconds after a commit, while
// the kernel frees deleted elements and resizes the hash tables of large sets.
func (c *Conn) Elements(t Table, set string, visit func(Element)) error {
	return c.request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, uint8(t.Family), c.about(t, set), func(body []byte) {
		for _, element := range Attributes(Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			visit(parseElement(element))
		}
	})
}

// Has reports whether a set or map has an element.
func (c *Conn) Has(t Table, set string, key []byte) (bool, error) {
	_, has, err := c.Element(t, set, key)
	return has, err
}

// Element returns the element of a set or map with a key, and whether there is one.
func (c *Conn) Element(t Table, set string, key []byte) (e Element, has bool, err error) {
	a := c.about(t, set)
	list := a.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	element := a.open(unix.NFTA_LIST_ELEM)
	k := a.open(unix.NFTA_SET_ELEM_KEY)
	a.bytes(unix.NFTA_DATA_VALUE, key)
	a.close(k)
	a.close(element)
	a.close(list)
	err = c.request(unix.NFT_MSG_GETSETELEM, 0, uint8(t.Family), a, func(body []byte) {
		for _, element := range Attributes(Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			e = parseElement(element)
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return e, false, nil
	}
	return e, err == nil, err
}

func parseElement(b []byte) (e Element) {
	for typ, payload := range Attributes(b) {
		const elemExpressions = 11 // NFTA_SET_ELEM_EXPRESSIONS: several of them (Linux 5.11)
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = Attr(payload, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			e.Value = Attr(payload, unix.NFTA_DATA_VALUE)
			if v := Attr(payload, unix.NFTA_DATA_VERDICT); v != nil {
				e.Verdict, e.Chain = Verdict(be32(Attr(v, unix.NFTA_VERDICT_CODE))), cString(Attr(v, unix.NFTA_VERDICT_CHAIN))
			}
		case unix.NFTA_SET_ELEM_EXPR, elemExpressions:
			e.Acts = true
			if cString(Attr(payload, unix.NFTA_EXPR_NAME)) == "counter" {
				e.Packets = be64(Attr(Attr(payload, unix.NFTA_EXPR_DATA), nftaCounterPackets))
			}
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.Expires = time.Duration(be64(payload)) * time.Millisecond
		case unix.NFTA_SET_ELEM_FLAGS:
			e.End = be32(payload)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_USERDATA:
			if len(payload) >= 3 { // as in comment
				e.Comment = payload[2 : len(payload)-1]
			}
		}
	}
	return e
}

// request sends one get request and calls visit with the body of every answer.
func (c *Conn) request(msg, flags uint16, family uint8, body attrs, visit func([]byte)) error {
	c.drain()
	c.seq++
	c.Requests++
	if flags&unix.NLM_F_DUMP != 0 {
		c.Dumps++
	}
	var a attrs
	if msg>>8 == 0 {
		msg |= unix.NFNL_SUBSYS_NFTABLES << 8
	}
	a.message(msg, flags|unix.NLM_F_ACK, family, 0)
	a = append(a, body...)
	binary.NativeEndian.PutUint32(a, uint32(len(a)))
	binary.NativeEndian.PutUint32(a[seqAt:], c.seq)
	if err := sock.Send(c.raw, a); err != nil {
		return fmt.Errorf("netlink request: %w", err)
	}
	var failed error
	generation := -1 // its lower 16 bits, from the messages of a dump
	for done := false; !done; {
		n, err := sock.Receive(c.raw, c.rbuf, true)
		if err != nil {
			c.unread = true
			return fmt.Errorf("netlink answer: %w", err)
		}
		for h, payload := range sock.Messages(c.rbuf[:n]) {
			if h.Sequence != c.seq {
				continue // of an aborted exchange
			}
			if h.Flags&unix.NLM_F_DUMP_INTR != 0 {
				failed = ErrInterrupted
			}
			switch h.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				if e := parseError(h, payload); e.errno != 0 {
					failed = e.errno
				}
			default:
				if len(payload) < nfgenHeaderLen {
					break
				}
				// The kernel does not set NLM_F_DUMP_INTR in dumps of elements.
				g := int(binary.BigEndian.Uint16(payload[nfgenResourceAt:]))
				if generation >= 0 && g != generation {
					failed = ErrInterrupted
				}
				generation = g
				visit(payload[nfgenHeaderLen:])
			}
		}
	}
	return failed
}
