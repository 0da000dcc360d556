// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestServicesLeaveRoom has one Service cause problem after problem, as a loop of patches does. The Node's
// Events are sent all the same.
func TestServicesLeaveRoom(t *testing.T) {
	s := newSender(nil, "test")
	service := corev1.ObjectReference{Kind: "Service", Namespace: "tenant", Name: "web"}
	for i := range 2 * maxSeries {
		s.record(service, corev1.EventTypeWarning, InvalidService, fmt.Sprint("no such scheduler: ", i))
		service.Name = fmt.Sprint("web-", i)
	}
	other := corev1.ObjectReference{Kind: "Service", Namespace: "victim", Name: "web"}
	if s.record(other, corev1.EventTypeWarning, FrontendContested, "no"); len(s.series) != perNamespace+1 {
		t.Errorf("%d series", len(s.series))
	}
	node := corev1.ObjectReference{Kind: "Node", Name: "node-1"}
	for _, reason := range []string{Damaged, FailedToProgram} {
		s.record(node, corev1.EventTypeWarning, reason, "no")
		if s.series[seriesKey{about: node, kind: corev1.EventTypeWarning, reason: reason}] == nil {
			t.Errorf("the Event %s of the Node is not sent", reason)
		}
	}
}

// TestServiceHasFewRequests changes a Service's annotation 100 times in a minute. A node asks the API server to
// create a few Events, not one for each change.
func TestServiceHasFewRequests(t *testing.T) {
	var a api
	s := newSender(a.client(t), "test")
	now := time.Now()
	for i := range 100 {
		s.record(corev1.ObjectReference{Kind: "Service", Namespace: "tenant", Name: "web"}, corev1.EventTypeWarning, InvalidService, fmt.Sprint("no such scheduler: ", i))
		sendDue(t, s, now)
	}
	if n := len(a.created); n != perService {
		t.Errorf("%d requests for 100 changes", n)
	}
}
