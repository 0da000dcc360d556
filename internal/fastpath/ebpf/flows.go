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

	back int // interface by which answers leave: In, or another one if packets come by another one now
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

// atOnce is how many flows are read or deleted at once.
const atOnce = 1024

// elements calls visit with every flow in the map.
func elements(flows *ebpf.Map, visit func(*programTuple, *programFlow)) error {
	keys, values := make([]programTuple, atOnce), make([]programFlow, atOnce)
	for at := (ebpf.MapBatchCursor{}); ; {
		n, err := flows.BatchLookup(&at, keys, values, nil)
		for i := range n {
			visit(&keys[i], &values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) { // these were the last
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// each calls visit with every connection in the map, also if it has only the flow of one direction.
func each(flows *ebpf.Map, visit func(*Flow)) error {
	all := map[programTuple]*Flow{} // by the key of the original direction
	err := elements(flows, func(key *programTuple, v *programFlow) {
		t, answers := key.get(), reversed(v.To.get())
		original := *key
		if v.Reply != 0 {
			original.set(answers)
			t, answers = answers, t
		}
		f := all[original]
		if f == nil {
			f = &Flow{Original: t, Reply: answers}
			all[original] = f
		}
		f.Packets[v.Reply&1], f.Bytes[v.Reply&1] = v.Packets, v.Bytes
		if v.Reply == 0 {
			f.In, f.Out = int(v.In), int(v.Out)
		} else {
			f.back = int(v.Out)
		}
	})
	for _, f := range all {
		f.back = cmp.Or(f.back, f.In)
		visit(f)
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
	return errors.Join(err, deleteKeys(flows, keys))
}

func deleteKeys(flows *ebpf.Map, keys []programTuple) error {
	for len(keys) > 0 {
		n, err := flows.BatchDelete(keys[:min(len(keys), atOnce)], nil)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			n++
		} else if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// Delete returns connections to the slow path.
func (e *Engine) Delete(match func(*Flow) bool) error {
	if e.objects.Flows == nil {
		return nil
	}
	return deleteFrom(e.objects.Flows, match)
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
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, err
	}
	spec, err := loadProgram()
	if err == nil {
		err = spec.Maps["flows"].Compatible(m) // it may be that of another version
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
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
