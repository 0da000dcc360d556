// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// Slipstream's own defaults.
const (
	// DefaultMinSyncPeriod replaces kube-proxy's default of 1s, which it has
	// because each of its updates of the kernel is expensive. Ten milliseconds would be
	// the longest part of most changes at 100 changes a second.
	DefaultMinSyncPeriod = time.Millisecond

	// DefaultIPTablesMinSyncPeriod is kube-proxy's default, as in iptables mode a
	// change may replace a whole table.
	DefaultIPTablesMinSyncPeriod = time.Second

	DefaultCheckPeriod = 500 * time.Millisecond

	DefaultStatusSocket = "/run/slipstream/slipstream.sock"

	// PodSocket is where pods expect podSocket, which has no default.
	PodSocket = "/run/slipstream-pods/drained.sock"

	// DefaultOffloadPacketThreshold is the value of KEP-4963.
	DefaultOffloadPacketThreshold = 20
)

// kube-proxy's ports, which cloud providers' load balancers and scrapers of metrics use.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// kubeProxyKind is the kind of kube-proxy's configuration.
const kubeProxyKind = "KubeProxyConfiguration"

// setDefaults sets the same fields as kube-proxy's defaulting.
func setDefaults(c *kubeproxy.KubeProxyConfiguration) {
	c.APIVersion, c.Kind = kubeproxy.SchemeGroupVersion.String(), kubeProxyKind
	set(&c.BindAddress, "0.0.0.0")
	everywhere, local := "::", "::1"
	if ip := netutils.ParseIPSloppy(c.BindAddress); ip.To4() != nil {
		everywhere, local = "0.0.0.0", "127.0.0.1"
	}
	set(&c.HealthzBindAddress, everywhere)
	c.HealthzBindAddress = WithPort(c.HealthzBindAddress, healthzPort)
	set(&c.MetricsBindAddress, local)
	c.MetricsBindAddress = WithPort(c.MetricsBindAddress, metricsPort)

	for _, mode := range []kubeproxy.ProxyMode{IPTables, NFTables} {
		m := ofMode(c, mode)
		set(m.masqueradeBit, new(int32(14)))
		set(&m.syncPeriod.Duration, 30*time.Second)
	}
	set(&c.NFTables.MinSyncPeriod.Duration, DefaultMinSyncPeriod)
	set(&c.IPTables.MinSyncPeriod.Duration, DefaultIPTablesMinSyncPeriod)
	set(&c.IPTables.LocalhostNodePorts, new(true))
	set(&c.IPVS.SyncPeriod.Duration, 30*time.Second)

	set(&c.OOMScoreAdj, new(int32(-999)))
	set(&c.Conntrack.MaxPerCore, new(int32(32<<10)))
	set(&c.Conntrack.Min, new(int32(128<<10)))
	set(&c.Conntrack.TCPEstablishedTimeout, &metav1.Duration{Duration: 24 * time.Hour})
	set(&c.Conntrack.TCPCloseWaitTimeout, &metav1.Duration{Duration: time.Hour})

	set(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	set(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	set(&c.ClientConnection.QPS, 5)
	set(&c.ClientConnection.Burst, 10)
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

func setOwnDefaults(c *SlipstreamConfiguration) {
	c.APIVersion, c.Kind = GroupVersion.String(), SlipstreamKind
	set(&c.CheckPeriod, &metav1.Duration{Duration: DefaultCheckPeriod})
	set(&c.VerifyPeriod, &metav1.Duration{})
	set(&c.StatusSocket, DefaultStatusSocket)
	set(&c.SocketLoadBalancing, SocketsOff)
	set(&c.FastPath.OffloadPacketThreshold, new(int64(DefaultOffloadPacketThreshold)))
	set(&c.FastPath.Engine, "flowtable")
	set(&c.FastPath.Bypass, "none")
	set(&c.FastPath.Scope, "services")
	set(&c.FastPath.HardwareOffload, "auto")
}

// set sets a variable that has the zero value.
func set[T comparable](to *T, value T) {
	var unset T
	if *to == unset {
		*to = value
	}
}

// WithPort appends a port to an IP address without one. Other strings are returned
// unchanged.
func WithPort(address string, port int) string {
	if netutils.ParseIPSloppy(address) == nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}

// inherit copies settings that a mode has not set from another mode.
func inherit(to, from perMode) {
	*to.masqueradeAll = *to.masqueradeAll || *from.masqueradeAll
	if bit := *from.masqueradeBit; bit != nil {
		set(to.masqueradeBit, new(*bit))
	}
	set(to.syncPeriod, *from.syncPeriod)
	set(to.minSyncPeriod, *from.minSyncPeriod)
}
