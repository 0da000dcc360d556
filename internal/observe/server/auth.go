// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Reviewer asks the API server who a client is and whether it may get a path, as the kubelet does: by
// TokenReview and SubjectAccessReview.
type Reviewer struct {
	authentication, authorization rest.Interface
	known                         *cache.LRUExpireCache // answers as HTTP statuses, by token, verb and path
}

// NewReviewer makes a Reviewer with clients for the two groups of the API.
func NewReviewer(authentication, authorization rest.Interface) *Reviewer {
	const mostReviews = 1000 // bounds the answers that are kept, as anybody can send any number of tokens
	return &Reviewer{authentication, authorization, cache.NewLRUExpireCache(mostReviews)}
}

// guard lets requests through that the API server allows. The token is that of a bearer or, for browsers,
// the password of any user.
func (r *Reviewer) guard(next http.Handler) http.Handler {
	if r == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		token, bearer := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
		if _, password, basic := q.BasicAuth(); !bearer && basic {
			token = password
		}
		status := http.StatusUnauthorized
		if token = strings.TrimSpace(token); token != "" {
			status = r.status(q, token)
		}
		switch status {
		case http.StatusOK:
			next.ServeHTTP(w, q)
			return
		case http.StatusUnauthorized:
			w.Header().Add("WWW-Authenticate", "Bearer")
			w.Header().Add("WWW-Authenticate", `Basic realm="any user, with a token of a ServiceAccount as the password"`)
		}
		http.Error(w, http.StatusText(status), status)
	})
}

// status returns 200 if the request is allowed.
func (r *Reviewer) status(q *http.Request, token string) int {
	verb := map[string]string{http.MethodGet: "get", http.MethodHead: "head", http.MethodPut: "put", http.MethodPost: "post"}[q.Method]
	key := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", token, q.Method, q.URL.Path))
	if known, ok := r.known.Get(key); ok {
		return known.(int)
	}
	const reviewTimeout = 10 * time.Second // of the questions about one request
	ctx, cancel := context.WithTimeout(q.Context(), reviewTimeout)
	defer cancel()
	status, err := r.ask(ctx, token, verb, q.URL.Path)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The API server does not say whether a client may read", "path", q.URL.Path, "reason", err.Error())
		return http.StatusServiceUnavailable
	}
	const reviewLasts = 10 * time.Second // how long an answer of the API server holds
	r.known.Add(key, status, reviewLasts)
	return status
}

func (r *Reviewer) ask(ctx context.Context, token, verb, path string) (status int, err error) {
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := r.authentication.Post().Resource("tokenreviews").Body(who).Do(ctx).Into(who); err != nil {
		return 0, err
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := who.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb},
	}}
	if err := r.authorization.Post().Resource("subjectaccessreviews").Body(may).Do(ctx).Into(may); err != nil {
		return 0, err
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

// certificate returns the certificate in two files, again when they have changed.
func certificate(certFile, keyFile string) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	var mu sync.Mutex
	var last *tls.Certificate
	var read string // when the files of the last one were written
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		written := ""
		for _, file := range []string{certFile, keyFile} {
			if info, err := os.Stat(file); err == nil {
				written += fmt.Sprint(info.ModTime(), info.Size(), " ")
			}
		}
		if last != nil && written == read {
			return last, nil
		}
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil && last != nil {
			return last, nil // half of it may be written
		}
		if err != nil {
			return nil, err
		}
		last, read = &pair, written
		return last, nil
	}
}
