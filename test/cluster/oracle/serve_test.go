// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8s "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestServeIn watches Services from a namespace without a link to the API server: events
// arrive while the request lasts, and the reverse proxy logs in.
func TestServeIn(t *testing.T) {
	kerneltest.Require(t, kerneltest.NetNS)
	newNamespace := func() *lab.Namespace {
		ns, err := lab.NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		return ns
	}
	here, there := newNamespace(), newNamespace()
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/api/v1/services" || r.URL.Query().Get("watch") != "true" {
			http.Error(w, "unexpected request", http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"}}}`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	listener, err := there.Listen("tcp", "127.0.0.1:6443")
	if err != nil {
		t.Fatal(err)
	}
	api.Listener = listener
	api.StartTLS()
	defer api.Close()
	server, err := serveIn(here, &rest.Config{
		Host: "https://127.0.0.1:6443", BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Dial: there.DialContext,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()

	client := k8s.NewForConfigOrDie(&rest.Config{Host: "http://" + apiAddress, Dial: here.DialContext})
	watch, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	event := <-watch.ResultChan()
	if svc, ok := event.Object.(*corev1.Service); !ok || svc.Name != "web" {
		t.Errorf("got %+v, want Service web", event)
	}
}
