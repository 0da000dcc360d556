// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	pb "k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"
)

// encoded is a list as an API server sends it.
func encoded(t *testing.T, kind string, items ...corev1.Service) []byte {
	t.Helper()
	list := &corev1.ServiceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind},
		ListMeta: metav1.ListMeta{ResourceVersion: "12345", Continue: "more"},
		Items:    items,
	}
	scheme := runtime.NewScheme()
	data, err := runtime.Encode(pb.NewSerializer(scheme, scheme), list)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// read reads a list of Services.
func read(r io.Reader) (meta metav1.ListMeta, names []string, err error) {
	meta, err = readList(r, "ServiceList", func(raw []byte) error {
		var s corev1.Service
		err := s.Unmarshal(raw)
		clear(raw) // nothing of it may be kept
		names = append(names, s.Name)
		return err
	})
	return meta, names, err
}

func TestReadList(t *testing.T) {
	large := *service("large", "10.96.0.2")
	large.Annotations = map[string]string{"a": strings.Repeat("x", 100000)}
	data := encoded(t, "ServiceList", *service("a", "10.96.0.1"), large, *service("b", "10.96.0.3"))
	meta, names, err := read(iotest.OneByteReader(bytes.NewReader(data)))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(names, " "); got != "a large b" || meta.ResourceVersion != "12345" || meta.Continue != "more" {
		t.Errorf("names %s, %+v", got, meta)
	}
	if _, names, err := read(bytes.NewReader(encoded(t, "ServiceList"))); err != nil || names != nil {
		t.Errorf("empty list: %v, %v", names, err)
	}
}

// TestReadListErrors checks that an incomplete list is an error, wherever it ends.
func TestReadListErrors(t *testing.T) {
	data := encoded(t, "ServiceList", *service("a", "10.96.0.1"), *service("b", "10.96.0.2"))
	end := bytes.LastIndex(data, []byte("TCP")) // text after the list is ignored
	for n := range end {
		if _, _, err := read(bytes.NewReader(data[:n])); err == nil {
			t.Fatalf("no error with %d of %d bytes", n, len(data))
		}
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":      {nil, "the answer is neither JSON nor in Kubernetes' protobuf encoding"},
		"a page":       {[]byte("<html>"), "the answer is neither JSON nor in Kubernetes' protobuf encoding"},
		"another kind": {encoded(t, "PodList"), "PodList instead of ServiceList"},
		"garbage":      {[]byte(magic + "\x0f\xff\xff"), "wire type 7"},
		"huge object":  {[]byte(magic + "\x12\x20\x12\xff\xff\xff\xff\x0f"), "an object of 4294967295 bytes"},
		"bad object":   {[]byte(magic + "\x12\x04\x12\x02\x0a\x7f"), "unexpected EOF"},
	} {
		if _, _, err := read(bytes.NewReader(c.data)); err == nil || err.Error() != c.want {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
	}
	if _, _, err := read(iotest.ErrReader(io.ErrClosedPipe)); err != io.ErrClosedPipe {
		t.Errorf("a connection that breaks: %v", err)
	}
}

// TestListErrors answers lists with what is none. Each is reported in one line.
func TestListErrors(t *testing.T) {
	for answer, want := range map[string]string{
		`{"kind":"ServiceList","items":[`: "unexpected EOF",
		`{"kind":"Status"}`:               `"Status" instead of ServiceList`,
		"<html>":                          "neither JSON nor",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
		client, err := NewClient(&rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: protobuf}})
		check(t, err)
		w, err := newWatcher(&run{source: &Source{}}, client, (&Options{}).kinds()[2])
		check(t, err)
		_, err = w.readAll(t.Context(), metav1.ListOptions{})
		s.Close()
		if err == nil || !strings.HasPrefix(err.Error(), "list of Services: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

func FuzzReadList(f *testing.F) {
	f.Add([]byte(magic))
	f.Add([]byte(magic + "\x0a\x11\x0a\x02v1\x12\x0bServiceList\x12\x06\x0a\x04\x12\x02\x31\x32"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _, _ = read(bytes.NewReader(data)) // ends, and does not panic
	})
}
