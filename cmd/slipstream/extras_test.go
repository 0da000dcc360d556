// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// balances is a programmer that has every algorithm.
type balances struct{ programmer }

func (balances) Supports(desired.Algorithm) error { return nil }

// TestRangesAndLimitsByMode: only nftables mode has ranges and limits. Others say so, for each annotation, and serve the
// Service's port.
func TestRangesAndLimitsByMode(t *testing.T) {
	annotations := map[string]string{
		desired.AnnotationPortRanges: "udp/10000-20000", desired.AnnotationMaxConnections: "5", desired.AnnotationMaxPerClient: "5", desired.AnnotationRatePerClient: "5/s",
	}
	for mode := range modes {
		c := config.New()
		c.KubeProxy.Mode = kubeproxy.ProxyMode(mode)
		d, err := desiredOn(instance{programmer: balances{}}, c, "n1", desired.Families{})
		if err != nil {
			t.Fatal(err)
		}
		s := desired.New(d)
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}},
		})
		update := s.Full()
		var fields, want []string
		for _, p := range update.Problems {
			fields = append(fields, p.Field)
		}
		frontends := 2
		if mode != config.NFTables {
			frontends = 1
			for annotation := range maps.Keys(annotations) {
				want = append(want, "metadata.annotations["+annotation+"]")
			}
		}
		slices.Sort(fields)
		slices.Sort(want)
		if !slices.Equal(fields, want) || len(update.Frontends) != frontends {
			t.Errorf("%s mode: problems of %q and %d frontends, want %q and %d", mode, fields, len(update.Frontends), want, frontends)
		}
	}
}
