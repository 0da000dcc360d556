// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// SocketSettings are compared by [Sockets].
var SocketSettings = []Setting{Direct, Straight, {Name: "nftables"}, OneRule}

// OneRule is the setting in which one rule translates connections to an address that no Service has: the
// least that the kernel's NAT costs.
var OneRule = Setting{Name: "one rule", rule: true}

// ruled is the address that the rule translates.
func (n *network) ruled() netip.Addr {
	if n.ipv6 {
		return netip.MustParseAddr("2001:db8::77")
	}
	return netip.MustParseAddr("192.0.2.77")
}

// useRule adds the rule, or removes it.
func (n *network) useRule(ctx context.Context, use bool) error {
	n.rule = use
	command, family := "delete table inet bench-rule", "ip"
	if n.ipv6 {
		family = "ip6"
	}
	if use { // before the proxy's chain
		command = fmt.Sprintf("table inet bench-rule {\nchain c { type nat hook prerouting priority -101; %s daddr %v tcp dport %d dnat %s to %v; }\n}", family, n.ruled(), requestPort.port, family, n.backend(requestPort))
	}
	_, err := n.nodes[0].Run(ctx, "nft", command)
	return err
}

// Straight is the setting in which the client's sockets connect straight to the endpoint (package
// socket). No packet is translated, and the node forwards them by the slow path.
var Straight = Setting{Name: "sockets", sockets: true}

// Sockets measures connections that carry one request and one response, as [CRR] does: from pod to pod
// without a Service, to a Service by sockets that connect straight to the endpoint, to the Service
// by translation, and by one rule. The node has more Services, of 10 endpoints each.
func Sockets(ctx context.Context, o Options) (_ *bench.Result, err error) {
	if err := errors.Join(o.validateCRR(), bench.Within("--services", o.Services, 1, 60_000)); err != nil {
		return nil, err
	}
	turn := fmt.Sprintf("%s connections; %s Services", bench.Thousands(o.Connections), bench.Thousands(o.Services))
	return run(ctx, "sockets", turn, &o, func(m *measurement) (err error) {
		defer func() { err = errors.Join(err, m.useSockets(ctx, false)) }()
		return m.shortConnections(ctx)
	})
}

// pad adds Services to a state.
func pad(state *desired.State, services int) {
	for i := range services {
		meta := metav1.ObjectMeta{Namespace: "padding", Name: fmt.Sprint("web-", i)}
		ip := netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}).String()
		state.SetService(&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: 80}},
		}})
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}}}
		for e := range 10 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.245.%d.%d", i%250, e+1)}})
		}
		state.SetEndpointSlice(slice)
	}
}

// useSockets attaches the programs of sockets for the client's pod, or removes them.
func (n *network) useSockets(ctx context.Context, use bool) (err error) {
	m := n.nodes[0]
	n.sockets = use
	if !use {
		const pause = time.Second // in which the kernel frees the maps
		defer time.Sleep(pause)
		return socket.Remove(m.FD())
	}
	dir, err := os.MkdirTemp("", "netns")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "cni-00000000-0000-0000-0000-000000000000")
	defer func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err = os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", n.client.FD()), path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	b, err := socket.New(socket.Options{NetNS: m.FD(), Pods: dir})
	if err != nil {
		return err
	}
	_, err = b.Reconcile(ctx, m.services)
	return errors.Join(err, b.Close()) // the programs stay attached
}
