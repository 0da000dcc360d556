// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/examples"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// Where the manifests are in the examples.
const (
	demoDir  = "demo"
	stepsDir = "demo/steps"
)

// manifests is the temporary directory that slipstream watches, one for its logs, and what
// the first manifests and all later ones describe. The demo has no addresses of its own.
type manifests struct {
	temporary string
	dir, logs string // in temporary
	nodes     []*corev1.Node
	services  []*corev1.Service
	pods      []*podSpec
}

// podSpec has the properties of a pod in EndpointSlices.
type podSpec struct {
	name, node string
	addrs      []netip.Addr
	ports      map[lab.Protocol]uint16
	later      bool // is not an endpoint in the first manifests
}

// newManifests reads the manifests, makes the directory and copies the first ones there.
func newManifests() (*manifests, error) {
	m := &manifests{}
	for i, pattern := range []string{demoDir + "/*", stepsDir + "/*/*"} {
		names, err := fs.Glob(examples.Demo, pattern+".yaml")
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if err := m.read(name, i > 0); err != nil {
				return nil, err
			}
		}
	}
	var err error
	if m.temporary, err = os.MkdirTemp("", "slipstream-demo-"); err != nil {
		return nil, err
	}
	m.dir, m.logs = filepath.Join(m.temporary, "manifests"), filepath.Join(m.temporary, "logs")
	err = errors.Join(os.Mkdir(m.dir, 0o755), os.Mkdir(m.logs, 0o755))
	if err == nil {
		_, err = m.copy(demoDir)
	}
	if err != nil {
		return nil, errors.Join(err, m.remove())
	}
	return m, nil
}

// read adds the objects of a file. The first manifests are read before later ones.
func (m *manifests) read(name string, later bool) error {
	data, err := examples.Demo.ReadFile(name)
	if err != nil {
		return err
	}
	content := manifest.Decode(path.Base(name), data)
	if len(content.Errors) > 0 {
		return content.Errors[0]
	}
	for _, o := range content.Objects {
		switch o := o.Object.(type) {
		case *corev1.Service:
			m.services = append(m.services, o)
		case *corev1.Node:
			m.nodes = append(m.nodes, o)
		case *discoveryv1.EndpointSlice:
			m.addPods(o, later)
		}
	}
	return nil
}

// addPods adds pods to slices. A pod is in one slice of each family.
func (m *manifests) addPods(s *discoveryv1.EndpointSlice, later bool) {
	for _, e := range s.Endpoints {
		i := slices.IndexFunc(m.pods, func(p *podSpec) bool { return p.name == e.TargetRef.Name })
		if i < 0 {
			i = len(m.pods)
			m.pods = append(m.pods, &podSpec{name: e.TargetRef.Name, node: *e.NodeName, ports: map[lab.Protocol]uint16{}, later: later})
		}
		pod := m.pods[i]
		if ip := netip.MustParseAddr(e.Addresses[0]); !slices.Contains(pod.addrs, ip) {
			pod.addrs = append(pod.addrs, ip)
		}
		for _, p := range s.Ports {
			pod.ports[lab.Protocol(*p.Protocol)] = uint16(*p.Port)
		}
	}
}

// podsOf returns the names of a Service's pods in the first manifests, sorted.
func (m *manifests) podsOf(service string) (names []string) {
	for _, p := range m.pods {
		if !p.later && strings.HasPrefix(p.name, service+"-") {
			names = append(names, p.name)
		}
	}
	slices.Sort(names)
	return names
}

// clusterIP returns the address and port of a Service in one family.
func (m *manifests) clusterIP(service string, p lab.Protocol, ipv6 bool) netip.AddrPort {
	for _, s := range m.services {
		for _, text := range s.Spec.ClusterIPs {
			for _, port := range s.Spec.Ports {
				ip := netip.MustParseAddr(text)
				if s.Name == service && ip.Is6() == ipv6 && lab.Protocol(port.Protocol) == p {
					return netip.AddrPortFrom(ip, uint16(port.Port))
				}
			}
		}
	}
	return netip.AddrPort{}
}

func (m *manifests) remove() error { return os.RemoveAll(m.temporary) }

// copy copies the files of a folder of the examples into the directory. It writes each
// under another name and renames it, so that slipstream never reads half a file. It
// returns the time just before the last rename.
func (m *manifests) copy(from string) (renamed time.Time, err error) {
	names, err := fs.Glob(examples.Demo, from+"/*.yaml")
	if err != nil {
		return renamed, err
	}
	for _, name := range names {
		data, err := examples.Demo.ReadFile(name)
		if err != nil {
			return renamed, err
		}
		name = path.Base(name)
		hidden := filepath.Join(m.dir, "."+name+".new")
		if err := os.WriteFile(hidden, data, 0o644); err != nil {
			return renamed, err
		}
		renamed = time.Now()
		if err := os.Rename(hidden, filepath.Join(m.dir, name)); err != nil {
			return renamed, err
		}
	}
	return renamed, nil
}

// network is the lab with the nodes of the manifests, the pods of all their versions, and
// a client pod on each node.
type network struct {
	lab     *lab.Lab
	nodes   []*lab.Node
	clients []*lab.Pod
	servers map[string][]*lab.Server // by pod
}

// newNetwork builds the lab. The error names the missing feature or permission.
func newNetwork(m *manifests) (*network, error) {
	l, err := lab.New()
	if errors.Is(err, fs.ErrPermission) {
		return nil, errors.New("needs root, to make network namespaces and to program the kernel in them")
	} else if err != nil {
		return nil, fmt.Errorf("network namespaces (CONFIG_NET_NS): %w", err)
	}
	n := &network{lab: l, servers: map[string][]*lab.Server{}}
	if err := n.fill(m); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return n, nil
}

func (n *network) fill(m *manifests) error {
	for _, object := range m.nodes {
		var o lab.NodeOptions
		for _, a := range object.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
				bits := 24
				if ip.Is6() {
					bits = 64
				}
				o.Addresses = append(o.Addresses, netip.PrefixFrom(ip, bits))
			}
		}
		var client []netip.Addr
		for _, text := range object.Spec.PodCIDRs {
			cidr := netip.MustParsePrefix(text)
			o.PodCIDRs = append(o.PodCIDRs, cidr)
			client = append(client, lab.Nth(cidr, 100))
		}
		node, err := n.lab.Node(object.Name, o)
		if err != nil {
			return err
		}
		n.nodes = append(n.nodes, node)
		pod, err := node.Pod(fmt.Sprintf("client-%d", len(n.nodes)), client...)
		if err != nil {
			return err
		}
		n.clients = append(n.clients, pod)
	}
	for _, p := range m.pods {
		if err := n.addPod(p); err != nil {
			return err
		}
	}
	return nil
}

// addPod adds a pod and starts its servers.
func (n *network) addPod(p *podSpec) error {
	i := slices.IndexFunc(n.nodes, func(n *lab.Node) bool { return n.Name() == p.node })
	if i < 0 {
		return fmt.Errorf("pod %s: the examples have no Node %q", p.name, p.node)
	}
	pod, err := n.nodes[i].Pod(p.name, p.addrs...)
	if err != nil {
		return err
	}
	for proto, port := range p.ports {
		s, err := pod.Serve(proto, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
		if err != nil {
			return err
		}
		n.servers[p.name] = append(n.servers[p.name], s)
	}
	return nil
}

// drain stops a pod's servers from listening. Their open connections go on.
func (n *network) drain(pod string) {
	for _, s := range n.servers[pod] {
		s.Drain()
	}
}

// tables returns the nftables tables of a node, as "ip slipstream". It lists them with
// a library that slipstream does not use, as an independent check.
func tables(n *lab.Node) (names []string, err error) {
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
		nftables.TableFamilyARP: "arp", nftables.TableFamilyBridge: "bridge", nftables.TableFamilyNetdev: "netdev",
	}
	err = n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := c.ListTables()
		for _, t := range all {
			names = append(names, families[t.Family]+" "+t.Name)
		}
		return err
	})
	return names, err
}
