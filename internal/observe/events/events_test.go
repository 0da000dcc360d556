// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	source "github.com/slipstream-proxy/slipstream/internal/source/api"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
)

// api stands for an API server that accepts Events.
type api struct {
	mu      sync.Mutex
	created []eventsv1.Event
	patches []string
	refuse  []int         // the answers to the next requests
	busy    chan struct{} // answers wait for it when set
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.busy != nil {
		<-a.busy
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if len(a.refuse) > 0 {
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure"}`, a.refuse[0])
		a.refuse = a.refuse[1:]
		return
	}
	if r.Method == http.MethodPatch {
		a.patches = append(a.patches, string(body))
		_, _ = io.WriteString(w, `{"kind":"Event","apiVersion":"events.k8s.io/v1"}`)
		return
	}
	var e eventsv1.Event
	if err := json.Unmarshal(body, &e); err != nil || !strings.HasPrefix(r.URL.Path, "/apis/events.k8s.io/v1/namespaces/") {
		http.Error(w, "not an Event", http.StatusBadRequest)
		return
	}
	a.created = append(a.created, e)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

func (a *api) client(t *testing.T) rest.Interface {
	t.Helper()
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	c, err := source.NewClient(&rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.For(eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestOnNode(t *testing.T) {
	var a api
	r, stop := OnNode(t.Context(), a.client(t), "node-1")
	r.Normal(Starting, "")
	r.Warning(FailedToProgram, "100 % wrong: "+strings.Repeat("é", noteLimit))
	r.OnService(types.NamespacedName{Namespace: "ns", Name: "web"}, FailedToStartServiceHealthcheck, "port 30000")
	stop()
	found := map[string]eventsv1.Event{}
	for _, e := range a.created {
		found[e.Reason] = e
	}
	if len(found) != 3 || len(a.created) != 3 {
		t.Fatalf("%d Events: %v", len(a.created), a.created)
	}
	if e := found[Starting]; e.Type != "Normal" || e.Regarding.Kind != "Node" || e.Regarding.Name != "node-1" || e.Regarding.UID != "node-1" ||
		e.Namespace != "default" || e.ReportingController != "slipstream" || e.Action != "StartKubeProxy" {
		t.Errorf("%+v", e)
	}
	if e := found[FailedToProgram]; e.Type != "Warning" || !strings.HasPrefix(e.Note, "100 % wrong: é") || len(e.Note) > noteLimit || !strings.HasSuffix(e.Note, "é") {
		t.Errorf("%+v", e)
	}
	if e := found[FailedToStartServiceHealthcheck]; e.Regarding.Kind != "Service" || e.Regarding.Namespace != "ns" || e.Namespace != "ns" || e.Regarding.Name != "web" {
		t.Errorf("%+v", e)
	}
}

// sendDue makes a sender send the Events that are due at a time.
func sendDue(t *testing.T, s *sender, at time.Time) {
	for k, one := range s.due(at) {
		s.send(t.Context(), k, one)
	}
}

// TestNoteChanges expects a new Event when the note has changed, as the API server rejects
// a change of the note: the last note is kept, and at most one Event a minute is created.
func TestNoteChanges(t *testing.T) {
	var a api
	s := newSender(a.client(t), "test")
	now := time.Now()
	for _, note := range []string{"one", "two", "three", "three"} {
		s.record(corev1.ObjectReference{Kind: "Node", Name: "node-1"}, corev1.EventTypeWarning, FailedToProgram, note)
		sendDue(t, s, now)
	}
	for range 2 {
		now = now.Add(countPeriod + time.Second)
		sendDue(t, s, now)
	}
	if len(a.created) != 2 || a.created[0].Note != "one" || a.created[1].Note != "three" || a.created[0].Name == a.created[1].Name || len(a.patches) != 0 {
		t.Errorf("%v, changed by %q", a.created, a.patches)
	}
}

// TestAgainAndAgain makes one Event of many that are alike.
func TestAgainAndAgain(t *testing.T) {
	var a api
	s := newSender(a.client(t), "test")
	tell := func(note string) {
		s.record(corev1.ObjectReference{Kind: "Node", Name: "node-1"}, corev1.EventTypeWarning, FailedToProgram, note)
	}
	now := time.Now()
	tell("again")
	sendDue(t, s, now)
	for range 19 {
		tell("again")
		sendDue(t, s, now)
	}
	if len(a.created) != 1 || len(a.patches) != 0 {
		t.Errorf("%d Events, changed by %q", len(a.created), a.patches)
	}
	later := now.Add(countPeriod + time.Second)
	sendDue(t, s, later)
	sendDue(t, s, later)
	if len(a.created) != 1 || len(a.patches) != 1 || !strings.HasPrefix(a.patches[0], `{"series":{"count":20,"lastObservedTime":"2`) {
		t.Errorf("%d Events, changed by %q", len(a.created), a.patches)
	}
	// One that is to be counted has expired: the next time it is another.
	a.refuse = []int{http.StatusNotFound}
	tell("lost")
	sendDue(t, s, later.Add(countPeriod))
	tell("two")
	sendDue(t, s, later.Add(countPeriod))
	if len(a.created) != 2 || a.created[1].Note != "two" || a.created[0].Name == a.created[1].Name {
		t.Errorf("%v", a.created)
	}
	sendDue(t, s, later.Add(time.Hour))
	if len(s.series) != 0 {
		t.Errorf("%d are remembered that have ended", len(s.series))
	}
}

// TestSameOnAllNodes reports two problems of a Service from two nodes, one after the other.
// Each problem becomes one Event, which has the same name on all nodes.
func TestSameOnAllNodes(t *testing.T) {
	var a api
	service := corev1.ObjectReference{Kind: "Service", Namespace: "ns", Name: "web"}
	names := map[string]map[string]bool{}
	for _, node := range []string{"node-1", "node-2"} {
		s := newSender(a.client(t), node)
		for _, note := range []string{"one", "two", "one"} {
			s.record(service, corev1.EventTypeWarning, InvalidService, note)
		}
		sendDue(t, s, time.Now())
	}
	for _, e := range a.created {
		if names[e.Note] == nil {
			names[e.Note] = map[string]bool{}
		}
		names[e.Note][e.Name] = true
		if msgs := validation.IsDNS1123Subdomain(e.Name); len(msgs) > 0 {
			t.Errorf("%s: %v", e.Name, msgs)
		}
	}
	if len(a.created) != 4 || len(names["one"]) != 1 || len(names["two"]) != 1 {
		t.Errorf("%d Events, names by note: %v", len(a.created), names)
	}
	// The API server has it from another node.
	a.refuse = []int{http.StatusConflict}
	s := newSender(a.client(t), "node-3")
	s.record(service, corev1.EventTypeWarning, InvalidService, "one")
	now := time.Now()
	sendDue(t, s, now)
	sendDue(t, s, now.Add(time.Hour))
	if len(a.created) != 4 || len(s.series) != 0 {
		t.Errorf("after a conflict: %d Events, %d series", len(a.created), len(s.series))
	}
}

// TestNotesOnServices records two problems of a Service with one reason, one right after the other.
// Each becomes an Event at once.
func TestNotesOnServices(t *testing.T) {
	var a api
	s := newSender(a.client(t), "test")
	now := time.Now()
	for _, note := range []string{"port 30000", "port 30001", "port 30000"} {
		s.record(corev1.ObjectReference{Kind: "Service", Namespace: "ns", Name: "web"}, corev1.EventTypeWarning, FailedToServeLoopbackNodePort, note)
	}
	sendDue(t, s, now)
	notes := map[string]int{}
	for _, e := range a.created {
		notes[e.Note]++
	}
	if len(a.created) != 2 || len(notes) != 2 {
		t.Errorf("Events by note: %v", notes)
	}
	sendDue(t, s, now.Add(countPeriod+time.Second))
	if len(a.created) != 2 || len(a.patches) != 1 {
		t.Errorf("%d Events, changed by %q", len(a.created), a.patches)
	}
}

// TestManySeries reports problems of more Services than a sender remembers.
func TestManySeries(t *testing.T) {
	s := newSender(nil, "node-1")
	for i := range maxSeries + 1 {
		s.record(corev1.ObjectReference{Kind: "Service", Namespace: fmt.Sprint(i), Name: "web"}, corev1.EventTypeWarning, FrontendContested, "")
	}
	if len(s.series) != maxSeries {
		t.Errorf("%d series", len(s.series))
	}
}

// TestRefused checks that only requests which may succeed later are repeated.
func TestRefused(t *testing.T) {
	for status, want := range map[int]int{http.StatusInternalServerError: 1, http.StatusUnauthorized: 1, http.StatusForbidden: 0} {
		a := api{refuse: []int{status}}
		s := newSender(a.client(t), "test")
		s.record(corev1.ObjectReference{Kind: "Node", Name: "node-1"}, corev1.EventTypeWarning, FailedToProgram, "")
		now := time.Now()
		sendDue(t, s, now)
		sendDue(t, s, now) // too early
		if len(a.created) != 0 {
			t.Errorf("after a %d: tried again at once", status)
		}
		sendDue(t, s, now.Add(retryPeriod+time.Second))
		if len(a.created) != want {
			t.Errorf("after a %d: %d Events", status, len(a.created))
		}
	}
}

// TestLimits checks that Events stay within the API's limits.
func TestLimits(t *testing.T) {
	node := strings.Repeat("a", 235) + "." + strings.Repeat("b", 17)
	e := newSender(nil, node).event(seriesKey{about: corev1.ObjectReference{Name: node}, kind: "Warning", reason: Damaged}, "", time.Now())
	if msgs := validation.IsDNS1123Subdomain(e.Name); len(msgs) > 0 || len(e.ReportingInstance) > 128 {
		t.Errorf("%v: %s, reported by %s", msgs, e.Name, e.ReportingInstance)
	}
}

// TestStopDoesNotWaitForEver uses an API server that never answers.
func TestStopDoesNotWaitForEver(t *testing.T) {
	a := api{busy: make(chan struct{})}
	defer close(a.busy)
	r, stop := OnNode(t.Context(), a.client(t), "node-1")
	begin := time.Now()
	r.Normal(Starting, "")
	if took := time.Since(begin); took > 10*time.Second { // it does not wait for the API server
		t.Errorf("telling it took %v", took)
	}
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(stopWithin + 10*time.Second):
		t.Fatal("it waits for ever")
	}
}

// TestReasonsDocumented checks that docs/metrics.md lists all reasons and no others.
func TestReasonsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("events.go")
	if err != nil {
		t.Fatal(err)
	}
	documented, there := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z][A-Za-z]+)` \\| (?:Normal|Warning) \\|").FindAllStringSubmatch(string(doc), -1) {
		documented[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^\t[A-Z]\w+ += "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		there[m[1]] = true
		if !documented[m[1]] {
			t.Errorf("%s is not documented", m[1])
		}
	}
	if len(there) < 10 {
		t.Fatalf("only %d reasons found", len(there))
	}
	for reason := range documented {
		if !there[reason] {
			t.Errorf("%s is documented, and does not exist", reason)
		}
	}
}
