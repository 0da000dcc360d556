// SPDX-License-Identifier: Apache-2.0

// Package lab is a small laboratory of Kubernetes-like nodes, pods and outside
// hosts on one machine. Each is a network namespace; veth pairs and one bridge,
// the fabric, connect them; servers and clients run in them as goroutines of
// this process.
//
// The picture, with the addresses that the examples use:
//
//	fabric bridge 192.168.100.1, fd00:100::1 (answers ARP and ND, forwards nothing)
//	 ├─ node n1  eth0 192.168.100.11, fd00:100::11; pods 10.244.1.0/24, fd00:244:1::/64
//	 │   ├─ pod web-1  eth0 10.244.1.5/32, fd00:244:1::5/128
//	 │   └─ pod web-2
//	 ├─ node n2  eth0 192.168.100.12, ...
//	 └─ host client  eth0 192.168.100.200
//
// Nothing is left behind, not even by kill -9: namespaces have no names on the
// file system and live only as long as this process's file descriptors, veth
// pairs are made inside them and never in the root namespace, and child
// processes get SIGKILL when this process ends.
//
// A lab needs CAP_SYS_ADMIN and CAP_NET_ADMIN (root, or root in a user
// namespace of its own) and a mounted /proc. Any number of labs can live beside
// each other, in one process or in several.
package lab

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
)

// ErrClosed says that the lab, the machine or the namespace was closed before.
var ErrClosed = errors.New("closed")

// Lab holds the nodes, pods and hosts that can reach each other. Its methods
// may be called from several goroutines.
type Lab struct {
	fabric *fabric

	// build serializes what changes the fabric and the routes between nodes.
	build sync.Mutex

	mu       sync.Mutex
	closed   bool
	machines map[string]*Machine
}

// New makes an empty lab: only the fabric. The error is EPERM (for errors.Is)
// where the process may not make network namespaces.
func New() (*Lab, error) {
	f, err := newFabric()
	if err != nil {
		return nil, err
	}
	return &Lab{fabric: f, machines: map[string]*Machine{}}, nil
}

// Close ends all child processes, closes all servers, streams and loads and
// drops all namespaces. Calls after the first do nothing. The kernel dismantles
// the namespaces a little later, on its own.
func (l *Lab) Close() error {
	l.build.Lock()
	defer l.build.Unlock()
	l.mu.Lock()
	l.closed = true
	machines := slices.Collect(maps.Values(l.machines))
	l.mu.Unlock()

	var wg sync.WaitGroup
	// Clients end before servers, so that none counts the lab's end as a failure.
	for _, m := range machines {
		wg.Go(func() { _ = m.closeOpen(true) })
	}
	wg.Wait()
	for _, m := range machines {
		wg.Go(func() { _ = m.Close() })
	}
	wg.Wait()
	return l.fabric.Close()
}

// add makes m a machine with a namespace, under a name that is not taken, and sets it up.
func (l *Lab) add(m *Machine, kind, name string, p profile, setUp func() error) error {
	ns, err := newNamespace(kind+" "+name, p)
	if err != nil {
		return err
	}
	m.Namespace, m.lab, m.name, m.profile = ns, l, name, p
	// Not the same first port for each machine: a pod may get the address of one deleted
	// just before.
	m.ports.Store(rand.Uint32())
	if err := l.register(m); err != nil {
		return ns.wrap(errors.Join(err, ns.Close()))
	}
	if err := setUp(); err != nil {
		return ns.wrap(errors.Join(err, l.remove(m)))
	}
	return nil
}

func (l *Lab) register(m *Machine) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if old := l.machines[m.name]; old != nil {
		return fmt.Errorf("name is taken by %s", old.label)
	}
	l.machines[m.name] = m
	return nil
}

// remove ends a machine and frees its name.
func (l *Lab) remove(m *Machine) error {
	err := m.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.machines[m.name] == m {
		delete(l.machines, m.name)
	}
	return err
}

// onFabric returns all nodes and hosts; the caller holds build.
func (l *Lab) onFabric() (all []*Machine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.machines {
		if m.onFabric {
			all = append(all, m)
		}
	}
	return all
}

// familyIndex is 0 for IPv4 and 1 for IPv6.
func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// OnError closes what is only partly made if there is an error, when it is deferred.
func OnError(err *error, close func() error) {
	if *err != nil {
		*err = errors.Join(*err, close())
	}
}
