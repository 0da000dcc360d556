// SPDX-License-Identifier: Apache-2.0

// Package events tells an administrator what must be seen: as Events on the Node,
// where 'kubectl describe node' shows them, or in the log where there is no API
// server. docs/metrics.md lists them.
package events

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Recorder takes what is to be told. Its methods return at once and may be called
// by any goroutine. What is told again and again becomes one Event that counts.
type Recorder interface {
	// Normal tells of something that is as it should be.
	Normal(reason, note string)
	// Warning tells of something that is not.
	Warning(reason, note string)
	// OnService tells of something about a Service on this node that is not as
	// it should be.
	OnService(service types.NamespacedName, reason, note string)
}

// Reasons. Those that kube-proxy has too go by its names.
const (
	Starting                        = "Starting"                        // the proxy starts
	FailedToStartProxierHealthcheck = "FailedToStartProxierHealthcheck" // the healthz address cannot be listened on
	FailedToStartMetricServer       = "FailedToStartMetricServer"       // the metrics address cannot be listened on
	FailedToStartServiceHealthcheck = "FailedToStartServiceHealthcheck" // on a Service: its health check port cannot be listened on
	FailedToTuneConntrack           = "FailedToTuneConntrack"           // conntrack's settings could not be written
	FailedToSetSysctl               = "FailedToSetSysctl"               // another setting of the kernel could not be written
	FeatureMissing                  = "FeatureMissing"                  // the node lacks something that the mode needs
	FailedToProgram                 = "FailedToProgram"                 // the kernel refuses what is to be programmed
	Damaged                         = "Damaged"                         // the ruleset was modified externally; everything is programmed again
	FastPathUnavailable             = "FastPathUnavailable"             // the kernel has no flowtables
	FailedToAccelerate              = "FailedToAccelerate"              // the fast path could not be programmed
	HardwareOffloadUnavailable      = "HardwareOffloadUnavailable"      // the network hardware does not take connections
	NodeMissing                     = "NodeMissing"                     // there is no Node object of the name by which the proxy knows its node
	LeftoversStay                   = "LeftoversStay"                   // something that kube-proxy has left could not be removed
)

// actionOf is what was being done when something with that reason happened, which
// an Event says beside the reason.
func actionOf(reason string) string {
	switch reason {
	case FailedToProgram, Damaged, FailedToAccelerate:
		return "SyncProxyRules"
	case FailedToStartServiceHealthcheck:
		return "Listen"
	}
	return "StartKubeProxy"
}

// Log is a Recorder that only writes a line in the log.
func Log() Recorder { return logged{} }

type logged struct{}

func (logged) Normal(reason, note string) { klog.InfoS("Event", "reason", reason, "note", note) }

func (logged) Warning(reason, note string) { klog.ErrorS(nil, "Event", "reason", reason, "note", note) }

func (logged) OnService(service types.NamespacedName, reason, note string) {
	klog.ErrorS(nil, "Event", "service", service, "reason", reason, "note", note)
}
