// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Client talks to one API server. Its REST clients share connections and the limit
// on the rate of requests.
type Client struct {
	config rest.Config
	http   *http.Client
}

// NewClient returns a client. It sends nothing. It returns an error if the configuration
// is not valid, e.g. if a certificate cannot be read.
func NewClient(config *rest.Config) (*Client, error) {
	c := &Client{config: *config}
	if c.config.RateLimiter == nil && c.config.QPS >= 0 {
		c.config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(
			cmp.Or(c.config.QPS, rest.DefaultQPS), cmp.Or(c.config.Burst, rest.DefaultBurst))
	}
	var err error
	if c.http, err = rest.HTTPClientFor(&c.config); err != nil {
		return nil, fmt.Errorf("client for the API server %s: %w", c.config.Host, err)
	}
	return c, nil
}

func (c *Client) takesProtobuf() bool {
	return strings.Contains(cmp.Or(c.config.AcceptContentTypes, c.config.ContentType), runtime.ContentTypeProtobuf)
}

// Media types of the metadata of objects.
const (
	metadataOf     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metadataListOf = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// metadata returns a client for the metadata of objects.
func (c *Client) metadata() *Client {
	of := *c
	of.config.AcceptContentTypes = runtime.ContentTypeJSON + metadataOf
	if c.takesProtobuf() {
		of.config.AcceptContentTypes = runtime.ContentTypeProtobuf + metadataOf + "," + of.config.AcceptContentTypes
	}
	return &of
}

// For returns a REST client for a few types of one version of one group of the API,
// e.g. corev1.SchemeGroupVersion with &corev1.Service{} and &corev1.ServiceList{}.
func (c *Client) For(gv schema.GroupVersion, types ...runtime.Object) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv, types...)
	metav1.AddToGroupVersion(scheme, gv)
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // for Status, the type of errors

	config := c.config
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(&config, c.http)
	if err != nil {
		return nil, fmt.Errorf("client for %s of the API server %s: %w", gv, c.config.Host, err)
	}
	return client, nil
}
