// SPDX-License-Identifier: Apache-2.0

package config

import (
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// maxConntrack limits the effect of maxPerCore on machines with many CPUs, as each entry
// takes memory that is not given back.
const maxConntrack = 1 << 20

// Conntrack returns the conntrack parameters for a machine with this number of CPUs.
func (c *Config) Conntrack(cpus int) sysctl.Conntrack {
	k := &c.KubeProxy.Conntrack
	out := sysctl.Conntrack{
		TCPEstablishedTimeout: ptr.Deref(k.TCPEstablishedTimeout, metav1.Duration{}).Duration,
		TCPCloseWaitTimeout:   ptr.Deref(k.TCPCloseWaitTimeout, metav1.Duration{}).Duration,
		TCPBeLiberal:          k.TCPBeLiberal,
		UDPTimeout:            k.UDPTimeout.Duration,
		UDPStreamTimeout:      k.UDPStreamTimeout.Duration,
	}
	if each := int(ptr.Deref(k.MaxPerCore, 0)); each > 0 {
		out.Max = max(each*cpus, int(ptr.Deref(k.Min, 0)))
		if each*cpus > maxConntrack {
			out.Max = maxConntrack
		}
	}
	return out
}
