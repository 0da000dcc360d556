// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
)

// Flow is a connection that is offloaded.
type Flow struct {
	Original, Reply ctnetlink.Tuple
	In, Out         int       // interfaces, of packets of the original direction
	Packets, Bytes  [2]uint64 // by direction, including those before the offload

	back   int     // interface by which answers leave: In, or another one if packets come by another one now
	direct [2]bool // by direction: packets go directly to the other end of a veth pair
	used   uint64  // CLOCK_MONOTONIC_COARSE of the last check, which is up to a tenth of a second before the last packet
}

func (t *programTuple) set(c ctnetlink.Tuple) {
	*t = programTuple{Protocol: c.Protocol}
	copy(t.Src[:], c.Src.Addr().AsSlice())
	copy(t.Dst[:], c.Dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(t.Ports[:], c.Src.Port())
	binary.BigEndian.PutUint16(t.Ports[2:], c.Dst.Port())
	if c.Src.Addr().Is6() {
		t.Ipv6 = 1
	}
}

func (t *programTuple) get() ctnetlink.Tuple {
	end := func(a [16]byte, port []byte) netip.AddrPort {
		addr := netip.AddrFrom4([4]byte(a[:4]))
		if t.Ipv6 != 0 {
			addr = netip.AddrFrom16(a)
		}
		return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port))
	}
	return ctnetlink.Tuple{Protocol: t.Protocol, Src: end(t.Src, t.Ports[:2]), Dst: end(t.Dst, t.Ports[2:])}
}

// reversed returns the tuple of answers to packets with the tuple.
func reversed(t ctnetlink.Tuple) ctnetlink.Tuple {
	return ctnetlink.Tuple{Protocol: t.Protocol, Src: t.Dst, Dst: t.Src}
}

// each calls visit with every connection in the map, also if it has only the flow of one direction.
func each(flows *ebpf.Map, visit func(*Flow)) error {
	const tries = 5 // an iteration ends early if flows are deleted meanwhile
	seen := map[programTuple]bool{}
	replies := map[programTuple]programTuple{} // keys by those of the originals
	var err error
	for range tries {
		var key, other programTuple
		var original, reply programFlow
		all := flows.Iterate()
		for all.Next(&key, &original) {
			if original.Reply != 0 {
				other.set(reversed(original.To.get()))
				replies[other] = key
				continue
			}
			if seen[key] {
				continue
			}
			seen[key] = true
			reply = programFlow{}
			f := Flow{Original: key.get(), Reply: reversed(original.To.get()), In: int(original.In), Out: int(original.Out), used: original.Checked}
			other.set(f.Reply)
			if err := flows.Lookup(&other, &reply); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
			f.back = int(cmp.Or(reply.Out, original.In))
			f.Packets, f.Bytes = [2]uint64{original.Packets, reply.Packets}, [2]uint64{original.Bytes, reply.Bytes}
			f.used, f.direct = max(f.used, reply.Checked), [2]bool{original.Peer != 0, reply.Peer != 0}
			visit(&f)
		}
		if err = all.Err(); !errors.Is(err, ebpf.ErrIterationAborted) {
			break
		}
	}
	for original, reply := range replies {
		var f programFlow
		if !seen[original] && errors.Is(flows.Lookup(&original, &f), ebpf.ErrKeyNotExist) {
			visit(&Flow{Original: original.get(), Reply: reply.get()})
		}
	}
	return err
}

// deleteFrom deletes connections from the map.
func deleteFrom(flows *ebpf.Map, match func(*Flow) bool) error {
	var keys []programTuple
	err := each(flows, func(f *Flow) {
		if match(f) {
			var original, reply programTuple
			original.set(f.Original)
			reply.set(f.Reply)
			keys = append(keys, reply, original)
		}
	})
	for i := range keys {
		if e := flows.Delete(&keys[i]); !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (e *Engine) delete(match func(*Flow) bool) error {
	if e.objects.Flows == nil {
		return nil
	}
	clear(e.tries) // they may come back at once
	return deleteFrom(e.objects.Flows, match)
}

// Delete returns connections to the slow path. Requests for an offload that packets have made
// before are discarded.
func (e *Engine) Delete(match func(*Flow) bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.discard()
	return e.delete(match)
}

// pinned opens the map of a network namespace. It is nil if there is none.
func pinned(ns int) (*ebpf.Map, error) {
	dir, err := bpffs.Folder(pins, ns)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "flows")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // without a system call of BPF, which a container may not have
	}
	return ebpf.LoadPinnedMap(path, nil)
}

// Each calls visit with every connection that is offloaded in a network namespace, in no order,
// also in other processes than the Engine's. The Flow is valid only during the call.
func Each(ns int, visit func(*Flow)) error {
	m, err := pinned(ns)
	if m == nil {
		return err
	}
	return errors.Join(each(m, visit), m.Close())
}

// Delete returns connections to the slow path, in other processes than the Engine's. It reports
// whether there is an Engine's map at all.
func Delete(ns int, match func(*Flow) bool) (exists bool, err error) {
	m, err := pinned(ns)
	if m == nil {
		return false, err
	}
	return true, errors.Join(deleteFrom(m, match), m.Close())
}
