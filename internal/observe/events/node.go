// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"os"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// reporter is the reporting controller of the Events.
const reporter = "slipstream"

// noteLimit is the API's limit for a note, in bytes (pkg/apis/events/validation of
// Kubernetes).
const noteLimit = 1024

// stopWithin bounds how long stop waits for pending Events.
const stopWithin = 2 * time.Second

// OnNode returns a Recorder that creates Events on a Node, or a Service, and logs them. The
// client is for events.k8s.io/v1 and needs the verbs create and patch for events. Failed
// requests are retried for about two minutes. Stop returns when all Events have been sent,
// after two seconds at the latest.
//
// The recorder of client-go is not used, as it links all groups of the API, which take
// 8 MB of memory.
func OnNode(client rest.Interface, node string) (r Recorder, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := os.Hostname()
	if err != nil || instance == "" {
		instance = node
	}
	n := &onNode{
		sender: newSender(client, reporter+"-"+instance),
		// 'kubectl describe node' looks for Events with the Node's name as its UID.
		node: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
	}
	done := make(chan struct{})
	go func() { defer close(done); n.sender.run(ctx) }()
	return n, func() {
		n.sender.wait(stopWithin)
		cancel()
		<-done
	}
}

type onNode struct {
	sender *sender
	node   corev1.ObjectReference
}

func (n *onNode) Normal(reason, note string) {
	logged{}.Normal(reason, note)
	n.sender.record(n.node, corev1.EventTypeNormal, reason, cut(note))
}

func (n *onNode) Warning(reason, note string) {
	logged{}.Warning(reason, note)
	n.sender.record(n.node, corev1.EventTypeWarning, reason, cut(note))
}

func (n *onNode) OnService(service types.NamespacedName, reason, note string) {
	logged{}.OnService(service, reason, note)
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name}
	n.sender.record(about, corev1.EventTypeWarning, reason, cut(note))
}

// cut shortens a note to the limit of the API.
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
