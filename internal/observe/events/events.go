// SPDX-License-Identifier: Apache-2.0

// Package events reports conditions to administrators: as Events on the Node, which
// 'kubectl describe node' shows, or in the log if there is no API server. docs/metrics.md
// lists them.
package events

import (
	"cmp"
	"context"
	"os"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Recorder records Events. Its methods do not block and may be called by several
// goroutines. Repeated Events with the same reason and note become one Event with a count.
type Recorder interface {
	// Normal records an Event of type Normal on the Node.
	Normal(reason, note string)
	// Warning records an Event of type Warning on the Node.
	Warning(reason, note string)
	// OnService records an Event of type Warning on a Service.
	OnService(service types.NamespacedName, reason, note string)
}

// Reasons. Where kube-proxy has the same Event, the name is kube-proxy's.
const (
	Starting                        = "Starting"                        // the proxy starts
	FailedToStartProxierHealthcheck = "FailedToStartProxierHealthcheck" // the healthz address cannot be listened on
	FailedToStartMetricServer       = "FailedToStartMetricServer"       // the metrics address cannot be listened on
	FailedToStartPage               = "FailedToStartPage"               // the address of the web page cannot be listened on
	FailedToStartServiceHealthcheck = "FailedToStartServiceHealthcheck" // on a Service: its health check port cannot be listened on
	FailedToServeLoopbackNodePort   = "FailedToServeLoopbackNodePort"   // on a Service: its NodePort cannot be listened on at a loopback address
	FailedToTuneConntrack           = "FailedToTuneConntrack"           // conntrack's settings could not be written
	FailedToSetSysctl               = "FailedToSetSysctl"               // another setting of the kernel could not be written
	FeatureMissing                  = "FeatureMissing"                  // the node lacks something that the mode needs
	DefaultMode                     = "KubeProxyDefaultMode"            // no mode is set
	FailedToProgram                 = "FailedToProgram"                 // the kernel rejects a change
	Damaged                         = "Damaged"                         // the ruleset was modified externally; everything is programmed again
	FastPathUnavailable             = "FastPathUnavailable"             // the kernel has no flowtables
	SocketsUnavailable              = "SocketsUnavailable"              // socketLoadBalancing is not possible on this node, or could not be removed
	FailedToConnectSockets          = "FailedToConnectSockets"          // the programs of sockets could not be programmed
	FailedToAccelerate              = "FailedToAccelerate"              // the fast path could not be programmed
	HardwareOffloadUnavailable      = "HardwareOffloadUnavailable"      // the network hardware does not accept connections
	NodeMissing                     = "NodeMissing"                     // there is no Node object with the name of this node
	LeftoversStay                   = "LeftoversStay"                   // a leftover of kube-proxy or of another mode could not be removed
	InvalidService                  = "InvalidService"                  // on a Service: an address or another field cannot be programmed
	EndpointUnanswered              = "EndpointUnanswered"              // on a Service: an endpoint does not answer, and is ejected or would be
	SessionAffinityFull             = "SessionAffinityFull"             // on a Service: it has as many clients with session affinity as it may have
	FrontendContested               = "FrontendContested"               // on a Service: another Service has one of its frontends
)

// actionOf returns the action of an Event: the proxy's activity that led to it.
func actionOf(reason string) string {
	switch reason {
	case FailedToProgram, Damaged, FailedToAccelerate, InvalidService, FrontendContested:
		return "SyncProxyRules"
	case FailedToStartServiceHealthcheck, FailedToServeLoopbackNodePort:
		return "Listen"
	}
	return "StartKubeProxy"
}

// Log returns a Recorder that only writes to the log of ctx.
func Log(ctx context.Context) Recorder { return logged{klog.FromContext(ctx)} }

type logged struct{ log klog.Logger }

func (l logged) Normal(reason, note string) { l.log.Info("Event", "reason", reason, "note", note) }

func (l logged) Warning(reason, note string) {
	l.log.Error(nil, "Event", "reason", reason, "note", note)
}

func (l logged) OnService(service types.NamespacedName, reason, note string) {
	l.log.Error(nil, "Event", "service", service, "reason", reason, "note", note)
}

// reporter is the reporting controller of the Events.
const reporter = "slipstream"

// noteLimit is the API's limit for a note, in bytes (pkg/apis/events/validation of
// Kubernetes).
const noteLimit = 1024

// stopWithin bounds how long stop waits for pending Events.
const stopWithin = 2 * time.Second

// OnNode returns a Recorder that creates Events on a Node, or a Service, and logs them in the log
// of ctx, until stop is called. The
// client is for events.k8s.io/v1 and needs the verbs create and patch for events. Failed
// requests are retried for about two minutes. Stop returns when all Events have been sent,
// after two seconds at the latest.
//
// The recorders of client-go are not used: that of tools/events links all groups of the API,
// which take 8 MB of memory, and that of tools/record 42 packages of patches and OpenAPI.
func OnNode(ctx context.Context, client rest.Interface, node string) (r Recorder, stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the last Events are sent after ctx has ended
	instance, _ := os.Hostname()
	n := &onNode{
		logged: logged{klog.FromContext(ctx)},
		sender: newSender(client, reporter+"-"+cmp.Or(instance, node)),
		// 'kubectl describe node' looks for Events with the Node's name as its UID.
		node: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
	}
	stopping, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); n.sender.run(ctx, stopping) }()
	return n, func() {
		defer cancel()
		close(stopping)
		defer time.AfterFunc(stopWithin, cancel).Stop()
		<-done
	}
}

type onNode struct {
	logged
	sender *sender
	node   corev1.ObjectReference
}

func (n *onNode) Normal(reason, note string) {
	n.logged.Normal(reason, note)
	n.sender.record(n.node, corev1.EventTypeNormal, reason, cut(note))
}

func (n *onNode) Warning(reason, note string) {
	n.logged.Warning(reason, note)
	n.sender.record(n.node, corev1.EventTypeWarning, reason, cut(note))
}

func (n *onNode) OnService(service types.NamespacedName, reason, note string) {
	n.logged.OnService(service, reason, note)
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name}
	n.sender.record(about, corev1.EventTypeWarning, reason, cut(note))
}

func cut(note string) string {
	if len(note) <= noteLimit {
		return note
	}
	end := noteLimit
	for !utf8.RuneStart(note[end]) {
		end--
	}
	return note[:end]
}
