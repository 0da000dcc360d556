// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reached is which servers answer connections, or datagrams.
func reached(from *lab.Machine, p lab.Protocol, to netip.AddrPort, n int) (map[string]int, error) {
	got := map[string]int{}
	for range n {
		r, err := from.Connect(p, to)
		if err != nil {
			return got, err
		}
		got[r.Server]++
	}
	return got, nil
}

// reaches waits until just these pods answer.
func (e *env) reaches(from *lab.Machine, p lab.Protocol, to netip.AddrPort, pods ...*runningPod) {
	e.Helper()
	var want []string
	for _, pod := range pods {
		want = append(want, pod.Name())
	}
	slices.Sort(want)
	e.until(fmt.Sprintf("%v %v from %s is answered by %v", p, to, from.Name(), want), func() error {
		got, err := reached(from, p, to, 12*len(want))
		if err != nil {
			return err
		}
		if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, want) {
			return fmt.Errorf("answered by %v", have)
		}
		return nil
	})
}

// everywhere waits until exactly these pods answer at a Service's ClusterIPs, in both families,
// from all nodes.
func (e *env) everywhere(svc *corev1.Service, pods ...*runningPod) {
	e.Helper()
	for _, n := range e.Nodes {
		for _, ipv6 := range families {
			e.reaches(&n.Machine, lab.TCP, clusterIP(svc, ipv6), pods...)
		}
	}
}

// silent waits until connections fail.
func (e *env) silent(from *lab.Machine, to netip.AddrPort) {
	e.Helper()
	e.until(fmt.Sprintf("%v from %s is not answered", to, from.Name()), func() error {
		r, err := from.Connect(lab.TCP, to, lab.Timeout(300*time.Millisecond))
		if err == nil {
			return fmt.Errorf("answered by %s", r.Server)
		}
		return nil
	})
}

// untilTerminating waits until a Service's EndpointSlices have nothing but terminating
// endpoints.
func (e *env) untilTerminating(svc *corev1.Service) {
	e.Helper()
	e.until("all endpoints of "+svc.Name+" are terminating", func() error {
		list, err := e.Plane.Client.DiscoveryV1().EndpointSlices(site.Namespace).List(e.Context(), metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + svc.Name,
		})
		if err != nil {
			return err
		}
		n := 0
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				n++
				if c := e.Conditions; !*c.Terminating || !*c.Serving || *c.Ready {
					return fmt.Errorf("endpoint %v is not: %+v", e.Addresses, c)
				}
			}
		}
		if n == 0 {
			return errors.New("there are none")
		}
		return nil
	})
}
