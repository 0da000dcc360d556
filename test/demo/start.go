// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// start introduces nodes, pods and Services, and starts slipstream.
func (d *demo) start(ctx context.Context) error {
	d.line(bold.Sprint("Slipstream"), " on Linux ", kernelRelease(), ", ", d.binary.version)
	d.line("Two nodes made of network namespaces; real kernel rules, real connections.")

	d.section("Two nodes, three Services")
	d.nodeTable()
	d.line()
	d.serviceTable()
	d.line()
	d.say("The manifests are those of %s, copied to a directory that slipstream watches:", shownDir)
	d.command("slipstream run --manifests DIR --hostname-override NODE")
	d.line()
	for _, n := range d.world.nodes {
		a := newAgent(n)
		d.agents = append(d.agents, a)
		begin := time.Now()
		u, err := a.start(ctx, d.binary, d.manifests.dir)
		if err != nil {
			return err
		}
		d.line("  ", bold.Sprint(n.Name()), "  kernel programmed in ", bold.Sprint(short(u.took)), ": ",
			plural(u.elements, "object"), ", ", short(u.read.Sub(begin)), " after exec")
		d.updates = addTo(d.updates, "first sync", u.took)
	}
	d.excerpt(ctx)
	d.hold(ctx, time.Second)
	return nil
}

// nodeTable lists nodes with their pods.
func (d *demo) nodeTable() {
	for i, n := range d.world.nodes {
		names := []string{d.world.clients[i].Name()}
		for _, p := range d.cast.pods {
			if p.node == n.Name() && !p.later {
				names = append(names, p.name)
			}
		}
		d.line("  ", bold.Sprint(left(n.Name(), 8)), left(addresses(n.Addrs()), 32), "pods ", strings.Join(names, ", "))
	}
}

// serviceTable lists Services with their addresses and pods.
func (d *demo) serviceTable() {
	d.line("  ", faint.Sprint(left("Service", 17), left("addresses", 25), left("ports", 16), "pods"))
	for _, s := range d.cast.services {
		var ports, pods []string
		for _, p := range s.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
		for _, p := range d.cast.pods {
			if !p.later && strings.HasPrefix(p.name, s.Name+"-") {
				pods = append(pods, p.name)
			}
		}
		d.line("  ", bold.Sprint(left(s.Namespace+"/"+s.Name, 17)), left(strings.Join(s.Spec.ClusterIPs, ", "), 25),
			left(strings.Join(ports, ", "), 16), strings.Join(pods, ", "))
	}
}

// excerpt shows what is in a node's kernel, where the nft command is installed.
func (d *demo) excerpt(ctx context.Context) {
	n := d.world.nodes[0]
	lines := nftFrontends(ctx, n)
	if len(lines) == 0 {
		return
	}
	slices.Sort(lines)
	d.line()
	d.line("  ", faint.Sprintf("The nft command, on %s: address . protocol . port, and after the Service's", n.Name()))
	d.line("  ", faint.Sprint("name an unused word . the number of its pool of pods (leading zeros left out)"))
	d.command("nft list map ip slipstream frontends")
	for _, l := range lines {
		d.line("    ", l)
	}
}

// addresses lists addresses.
func addresses[A fmt.Stringer](all []A) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// kernelRelease is what uname -r prints.
func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "(unknown)"
	}
	return unix.ByteSliceToString(name.Release[:])
}
