// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Verify compares what is attached, and what the maps have, with what a Balancer has for a full description; with nil there
// should be nothing. It changes nothing, and needs no Balancer that runs. It returns the number of frontends, and the differences, which may be of a
// change that is just being written.
func Verify(o Options, full *desired.Change) (frontends int, faults []string, err error) {
	if full == nil {
		if answers(o.NetNS) {
			faults = append(faults, "BPF programs of sockets are attached, though socketLoadBalancing is off")
		}
		return 0, faults, nil
	}
	b, err := prepare(o)
	if err != nil {
		return 0, nil, err
	}
	read := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range read {
			err = errors.Join(err, m.Close())
		}
	}()
	for _, p := range attachTypes {
		pin := filepath.Join(b.dir, p.name)
		l, failed := link.LoadPinnedLink(pin, nil)
		if failed != nil && !errors.Is(failed, os.ErrNotExist) {
			return 0, nil, failed
		}
		if failed != nil || !b.attached(l, pin) {
			faults = append(faults, b.detached(p.name))
		}
		if failed != nil {
			continue
		}
		info, failed := l.Info()
		if err := errors.Join(failed, l.Close()); err != nil {
			return 0, nil, err
		}
		bpffs.OpenMaps(info.Program, read)
	}
	if len(read) == 0 {
		return 0, faults, nil
	}
	want := newContent()
	u := want.apply(full)
	wanted := u.asRead()
	got, err := readUpdates(read)
	if err != nil {
		return 0, faults, fmt.Errorf("maps of sockets: %w", err)
	}
	has := got.asRead()
	full.Sets[desired.DirectIPs].Note(b.selected)
	if err := errors.Join(b.scan(), b.compareNamespaces(read["namespaces"], wanted, has)); err != nil {
		return 0, faults, err
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if has[key] != wanted[key] {
			faults = append(faults, fmt.Sprintf("map of sockets: %s is %q instead of %q", key, has[key], wanted[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(has)) {
		if _, is := wanted[key]; !is {
			faults = append(faults, fmt.Sprintf("map of sockets: %s, %q, does not belong there", key, has[key]))
		}
	}
	var until uint64
	if m, now := read["lease"], bpffs.Now(); m != nil && m.Lookup(uint32(0), &until) == nil && until < now {
		faults = append(faults, fmt.Sprintf("the programs of sockets do nothing: no proxy has renewed their lease for %s", time.Duration(now-until).Round(time.Second)))
	}
	return want.frontends, faults, nil
}

// compareNamespaces adds to what is wanted, and what there is, the network namespaces that are served.
func (b *Balancer) compareNamespaces(m *ebpf.Map, wanted, has map[string]string) error {
	const pod, node = "is a pod's", "is the node's"
	names := map[uint64]string{}
	for n, c := range b.namespaces {
		names[c.cookie] = "network namespace " + cmp.Or(n.name, "of the node")
		if c.served {
			wanted[names[c.cookie]] = map[bool]string{true: node, false: pod}[n == namespace{}]
		}
	}
	var served []update[uint64, uint32]
	err := read(m, &served)
	for _, n := range served {
		name := cmp.Or(names[n.key], fmt.Sprintf("network namespace with the cookie %d", n.key))
		has[name] = map[uint32]string{podsNamespace: pod, nodesNamespace: node}[n.value]
	}
	return err
}

// readUpdates reads maps as the updates that would write them.
func readUpdates(maps map[string]*ebpf.Map) (u updates, err error) {
	return u, errors.Join(
		read(maps["endpoints"], &u.slots), read(maps["pools"], &u.pools), read(maps["node_addresses"], &u.addresses), read(maps["frontends"], &u.frontends),
	)
}

func read[K comparable, V any](m *ebpf.Map, all *[]update[K, V]) error {
	if m == nil {
		return errors.New("one is missing")
	}
	var e update[K, V]
	elements := m.Iterate()
	for elements.Next(&e.key, &e.value) {
		*all = append(*all, e)
	}
	return elements.Err()
}

// asRead describes what a whole content says to clients: the endpoints of frontends, in order, whatever the numbers of their pools,
// and the node's addresses.
func (u updates) asRead() map[string]string {
	pools, slots, all := map[uint32]programPool{}, map[programSlot]programAddress{}, map[string]string{}
	for _, p := range u.pools {
		pools[p.key] = p.value
	}
	for _, s := range u.slots {
		slots[s.key] = s.value
	}
	for _, f := range u.frontends {
		what := "left to the rules"
		if p, is := pools[f.value]; is && p.Count > 0 {
			var endpoints []string
			for n := range p.Count {
				endpoints = append(endpoints, slots[programSlot{Pool: f.value, Number: n}].String())
			}
			slices.Sort(endpoints)
			what = fmt.Sprint(slices.Compact(endpoints))
		}
		all["frontend "+f.key.String()] = what
	}
	for _, a := range u.addresses {
		all["node address "+a.key.String()] = map[uint32]string{servesNodePorts: "serves NodePorts", servedByNode: "is a ClusterIP"}[a.value]
	}
	return all
}

func (b programAddress) String() string {
	var ip []byte
	for _, word := range b.Ip {
		ip = binary.NativeEndian.AppendUint32(ip, word)
	}
	a, _ := netip.AddrFromSlice(ip)
	if b.Port == 0 {
		return a.Unmap().String()
	}
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, b.Port))).String()
}
