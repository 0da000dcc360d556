// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// writeCertificate writes a certificate for 127.0.0.1 with a serial number.
func writeCertificate(t *testing.T, dir string, serial int64) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "node"}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: raw}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// reviews is an API server that knows the users reader, whom it lets get /metrics, and other.
func reviews(t *testing.T) (*Reviewer, *httptest.Server) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		switch {
		case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			var review authenticationv1.TokenReview
			json.NewDecoder(r.Body).Decode(&review)
			name, known := strings.CutPrefix(review.Spec.Token, "token of ")
			review.Status.Authenticated, review.Status.User.Username = known, name
			answer = &review
		case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
			var review authorizationv1.SubjectAccessReview
			json.NewDecoder(r.Body).Decode(&review)
			a := review.Spec.NonResourceAttributes
			review.Status.Allowed = strings.HasPrefix(a.Path, "/open") || review.Spec.User == "reader" && a.Verb == "get" && a.Path == "/metrics"
			answer = &review
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(api.Close)
	client := func(gv schema.GroupVersion) rest.Interface {
		c, err := rest.RESTClientFor(&rest.Config{Host: api.URL, APIPath: "/apis", ContentConfig: rest.ContentConfig{
			GroupVersion: &gv, NegotiatedSerializer: scheme.Codecs.WithoutConversion(), ContentType: runtime.ContentTypeJSON}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return NewReviewer(client(authenticationv1.SchemeGroupVersion), client(authorizationv1.SchemeGroupVersion)), api
}

// TestAuthorization reads metrics over TLS with several tokens, and goes on with a renewed certificate. The address for
// health stays open to all.
func TestAuthorization(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := writeCertificate(t, dir, 1)
	reviewer, api := reviews(t)
	const healthz, metrics = "127.0.0.1:0", "localhost:0"
	r := start(t, Options{MetricsAddress: metrics, HealthzAddress: healthz, CertFile: certFile, KeyFile: keyFile, Reviewer: reviewer})
	at := func(address string) string { r.mu.Lock(); defer r.mu.Unlock(); return r.addresses[address] }
	get := func(url string, set func(*http.Request)) (status int, serial int64) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		set(q)
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
		a, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		if a.TLS != nil {
			serial = a.TLS.PeerCertificates[0].SerialNumber.Int64()
		}
		return a.StatusCode, serial
	}
	bearer := func(token string) func(*http.Request) {
		return func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+token) }
	}
	base := "https://" + at(metrics)
	for name, c := range map[string]struct {
		path string
		set  func(*http.Request)
		want int
	}{
		"no token":        {"/metrics", func(*http.Request) {}, http.StatusUnauthorized},
		"an empty token":  {"/metrics", bearer(""), http.StatusUnauthorized},
		"unknown token":   {"/metrics", bearer("x"), http.StatusUnauthorized},
		"a reader":        {"/metrics", bearer("token of reader"), http.StatusOK},
		"another path":    {"/configz", bearer("token of reader"), http.StatusForbidden},
		"another user":    {"/metrics", bearer("token of other"), http.StatusForbidden},
		"a browser":       {"/metrics", func(q *http.Request) { q.SetBasicAuth("anybody", "token of reader") }, http.StatusOK},
		"another browser": {"/metrics", func(q *http.Request) { q.SetBasicAuth("token of reader", "x") }, http.StatusUnauthorized},
	} {
		if status, _ := get(base+c.path, c.set); status != c.want {
			t.Errorf("%s: status %d instead of %d", name, status, c.want)
		}
	}
	// Answers are kept by token, method and path, which a client can write with line breaks.
	if status, _ := get(base+"/open%0AGET%0A/metrics", bearer("token of other")); status != http.StatusNotFound {
		t.Errorf("an open path: status %d", status)
	}
	if status, _ := get(base+"/metrics", func(q *http.Request) { q.SetBasicAuth("", "token of other\nGET\n/open") }); status != http.StatusForbidden {
		t.Errorf("a token with line breaks: status %d", status)
	}
	if status, _ := get("http://"+at(healthz)+"/livez", func(*http.Request) {}); status != http.StatusOK {
		t.Errorf("/livez: status %d", status)
	}
	if status, _ := get("http://"+at(metrics)+"/metrics", bearer("token of reader")); status != http.StatusBadRequest {
		t.Errorf("without TLS: status %d", status)
	}
	writeCertificate(t, dir, 22222)
	if _, serial := get(base+"/metrics", bearer("token of reader")); serial != 22222 {
		t.Errorf("the certificate has number %d", serial)
	}
	api.Close()
	if status, _ := get(base+"/metrics", bearer("token of somebody")); status != http.StatusServiceUnavailable {
		t.Errorf("without an API server: status %d", status)
	}
}
