// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// Vantages by the kind of address that they connect to.
var (
	inside   = []string{PodNoEndpoint, PodEndpoint, OnNode, Outside}
	external = []string{PodNoEndpoint, PodEndpoint, OnNode, Outside, OtherPod}
	limited  = append(slices.Clone(external), Stranger) // by source ranges
	onNode   = []string{OnNode}
	outside  = []string{Outside}
	aside    = []string{PodNoEndpoint, Outside} // for what should not depend on who asks
)

// manyAddresses are the vantages that have any number of addresses.
var manyAddresses = []string{PodNoEndpoint, Outside, Stranger}

const unusedPort = 7

// Plan is what to look at in a cluster: each address of each Service from where it
// matters, and what is near it and should not answer.
func Plan(c *Cluster) []Probe {
	p := planner{firewall: c.Settings.Firewall}
	for _, svc := range c.Services {
		p.service(c, svc)
	}
	for f := range ServiceCIDRs {
		const what = "a ClusterIP that no Service has"
		p.from(inside, Probe{To: netip.AddrPortFrom(c.Unallocated(f), 80), Protocol: lab.TCP, What: what})
		p.from(aside, Probe{To: netip.AddrPortFrom(c.Unallocated(f), 53), Protocol: lab.UDP, What: what})
	}
	return p.probes
}

type planner struct {
	firewall bool
	probes   []Probe
}

func (p *planner) from(vantages []string, probe Probe) {
	for _, v := range vantages {
		probe.From = v
		// From n2, n1 may lead a connection back to n2, and the answer does not
		// come through n1 again. A firewall may accept only what an endpoint sends
		// to itself.
		probe.Mixed = v == OtherPod || p.firewall && v == PodEndpoint
		p.probes = append(p.probes, probe)
	}
}

type place struct {
	what string
	to   netip.AddrPort
	from []string
}

func (p *planner) service(c *Cluster, svc *corev1.Service) {
	for _, port := range svc.Spec.Ports {
		before := len(p.probes)
		for _, at := range placesOf(svc, port) {
			p.from(at.from, Probe{
				Protocol: lab.Protocol(port.Protocol), To: at.to,
				What:      fmt.Sprintf("%s of %s/%s:%s", at.what, svc.Namespace, svc.Name, port.Name),
				Namespace: svc.Namespace, Service: svc.Name,
				Backends: c.Backends(svc, port, familyOf(at.to.Addr())),
			})
		}
		if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			p.probes = append(p.probes[:before:before], sticky(p.probes[before:])...)
		}
	}
	p.nearby(svc)
	p.healthCheck(svc)
}

// sticky adapts the probes of a Service port to session affinity. Vantages with one address
// observe only one place of each family, because the proxy would remember the others.
func sticky(probes []Probe) (all []Probe) {
	type seen struct {
		from   string
		family int
	}
	before := map[seen]Probe{}
	for _, p := range probes {
		if p.From == OtherPod {
			continue // some of its connections fail, so it cannot be said what sticks
		}
		p.Kind = Stick
		key := seen{p.From, familyOf(p.To.Addr())}
		previous, again := before[key]
		before[key] = p
		switch {
		case !again:
			all = append(all, p)
		case slices.Contains(manyAddresses, p.From):
			shared := previous
			shared.Kind, shared.Then = Share, p.To
			all = append(all, p, shared)
		}
	}
	return all
}

// placesOf are the addresses of a Service port, ClusterIPs first.
func placesOf(svc *corev1.Service, port corev1.ServicePort) (all []place) {
	at := func(ip string, port int32) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port))
	}
	for _, ip := range svc.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone {
			all = append(all, place{"ClusterIP", at(ip, port.Port), inside})
		}
	}
	for _, ip := range svc.Spec.ExternalIPs {
		all = append(all, place{"external IP", at(ip, port.Port), external})
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IP == "" {
			continue
		}
		from := external
		if len(svc.Spec.LoadBalancerSourceRanges) > 0 {
			from = limited
		}
		all = append(all, place{"load balancer IP", at(in.IP, port.Port), from})
	}
	if port.NodePort == 0 {
		return all
	}
	for f, own := range NodeAddress(Node1) {
		on := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, uint16(port.NodePort)) }
		loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}[f]
		all = append(all,
			place{"NodePort", on(own), external},
			place{"NodePort on the second address", on(Second[f]), aside},
			place{"NodePort on a load balancer's address of n1", on(LocalVIP[f]), outside},
			place{"NodePort on loopback", on(loopback), onNode})
	}
	return all
}

// nearby looks at ports that the Service has not.
func (p *planner) nearby(svc *corev1.Service) {
	type other struct{ what, ip string }
	var others []other
	for _, ip := range svc.Spec.ClusterIPs {
		others = append(others, other{"ClusterIP", ip})
	}
	for _, ip := range svc.Spec.ExternalIPs {
		others = append(others, other{"external IP", ip})
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		others = append(others, other{"load balancer IP", in.IP})
	}
	for i, o := range others {
		ip, err := netip.ParseAddr(o.ip)
		if err != nil {
			continue
		}
		from := aside
		if o.what == "ClusterIP" {
			from = inside
		}
		p.from(from, Probe{
			Protocol: []lab.Protocol{lab.TCP, lab.UDP}[i%2], To: netip.AddrPortFrom(ip, unusedPort),
			What:      fmt.Sprintf("unused port of the %s of %s/%s", o.what, svc.Namespace, svc.Name),
			Namespace: svc.Namespace, Service: svc.Name,
		})
	}
}

func (p *planner) healthCheck(svc *corev1.Service) {
	if svc.Spec.HealthCheckNodePort == 0 {
		return
	}
	for f := range Second {
		for _, a := range []netip.Addr{NodeAddress(Node1)[f], Second[f]} {
			p.from(outside, Probe{
				Kind: Health, Protocol: lab.TCP, To: netip.AddrPortFrom(a, uint16(svc.Spec.HealthCheckNodePort)),
				What:      fmt.Sprintf("health check node port of %s/%s", svc.Namespace, svc.Name),
				Namespace: svc.Namespace, Service: svc.Name,
			})
		}
	}
}
