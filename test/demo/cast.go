// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/examples"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// cast is who is in the manifests, later versions included: the demo makes its
// nodes and pods from it, and has no addresses of its own.
type cast struct {
	nodes    []*castNode
	pods     []*castPod
	services []*corev1.Service
}

type castNode struct {
	name  string
	addrs []netip.Addr
	pods  []netip.Prefix
}

type castPod struct {
	name, node string
	addrs      []netip.Addr
	ports      map[lab.Protocol]uint16
	later      bool // is not in the first versions of the manifests
}

// readCast reads all manifests of the demo.
func readCast() (*cast, error) {
	c := &cast{}
	err := fs.WalkDir(examples.Demo, demoDir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := examples.Demo.ReadFile(name)
		if err != nil {
			return err
		}
		content := manifest.Decode(path.Base(name), data)
		if len(content.Errors) > 0 {
			return content.Errors[0]
		}
		for _, o := range content.Objects {
			if err := c.add(o, strings.HasPrefix(name, stepsDir)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	return c, err
}

func (c *cast) add(o manifest.Object, later bool) error {
	switch o := o.Object.(type) {
	case *corev1.Service:
		c.services = append(c.services, o)
	case *corev1.Node:
		return c.addNode(o)
	case *discoveryv1.EndpointSlice:
		return c.addPods(o, later)
	}
	return nil
}

func (c *cast) addNode(o *corev1.Node) error {
	n := &castNode{name: o.Name}
	for _, a := range o.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		ip, err := netip.ParseAddr(a.Address)
		if err != nil {
			return fmt.Errorf("status.addresses of Node %s: %w", o.Name, err)
		}
		n.addrs = append(n.addrs, ip)
	}
	for _, text := range o.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("spec.podCIDRs of Node %s: %w", o.Name, err)
		}
		n.pods = append(n.pods, p)
	}
	c.nodes = append(c.nodes, n)
	return nil
}

// addPods adds what a slice says about pods; other slices say the rest.
func (c *cast) addPods(s *discoveryv1.EndpointSlice, later bool) error {
	for _, e := range s.Endpoints {
		if e.TargetRef == nil || e.NodeName == nil {
			return fmt.Errorf("endpoints of EndpointSlice %s: one lacks targetRef or nodeName", s.Name)
		}
		pod := c.pod(e.TargetRef.Name)
		pod.later = pod.later && later
		pod.node = *e.NodeName
		ip, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			return fmt.Errorf("endpoints of EndpointSlice %s: %w", s.Name, err)
		}
		if !pod.has(ip) {
			pod.addrs = append(pod.addrs, ip)
		}
		for _, p := range s.Ports {
			pod.ports[protocol(*p.Protocol)] = uint16(*p.Port)
		}
	}
	return nil
}

// pod returns the pod of that name, a new one if there is none.
func (c *cast) pod(name string) *castPod {
	for _, p := range c.pods {
		if p.name == name {
			return p
		}
	}
	p := &castPod{name: name, ports: map[lab.Protocol]uint16{}, later: true}
	c.pods = append(c.pods, p)
	return p
}

func (p *castPod) has(ip netip.Addr) bool {
	for _, a := range p.addrs {
		if a == ip {
			return true
		}
	}
	return false
}

func protocol(p corev1.Protocol) lab.Protocol {
	if p == corev1.ProtocolUDP {
		return lab.UDP
	}
	return lab.TCP
}

// frontend is what clients connect to.
type frontend struct {
	service string
	proto   lab.Protocol
	addr    netip.AddrPort
}

func (f frontend) String() string { return fmt.Sprintf("%s/%v", f.addr, f.proto) }

// frontend returns the address of a Service in one family.
func (c *cast) frontend(service string, p lab.Protocol, ipv6 bool) (frontend, error) {
	i := slices.IndexFunc(c.services, func(s *corev1.Service) bool { return s.Name == service })
	if i < 0 {
		return frontend{}, fmt.Errorf("there is no Service %s in the examples", service)
	}
	s := c.services[i]
	for _, text := range s.Spec.ClusterIPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return frontend{}, fmt.Errorf("spec.clusterIPs of Service %s: %w", service, err)
		}
		for _, port := range s.Spec.Ports {
			if ip.Is6() == ipv6 && protocol(port.Protocol) == p {
				return frontend{service, p, netip.AddrPortFrom(ip, uint16(port.Port))}, nil
			}
		}
	}
	return frontend{}, fmt.Errorf("no address of Service %s is for %v with IPv6 %v", service, p, ipv6)
}
